"""`python -m benchmarks [name] [arguments]`: run one benchmark, or all of them."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from pathlib import Path


def names() -> list[str]:
    """The benchmarks of this folder: every module with a `main(argv)`."""
    found = (m.name for m in pkgutil.iter_modules([str(Path(__file__).parent)]))
    return sorted(name for name in found if not name.startswith("_"))


def main(argv: list[str]) -> int:
    """Run the named benchmark with its arguments, or all without any."""
    chosen = argv[:1] or names()
    unknown = sorted(set(chosen) - set(names()))
    if unknown:
        print(f"no benchmark {unknown[0]!r}; choose among {', '.join(names())}", file=sys.stderr)
        return 64
    for name in chosen:
        print(f"== {name}", flush=True)
        code: int = importlib.import_module(f"benchmarks.{name}").main(argv[1:])
        if code:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
