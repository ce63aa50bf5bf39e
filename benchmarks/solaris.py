"""What Solaris covers, and what that is worth to students.

`python -m benchmarks solaris [--quick]`: candidate prediction against its baselines and an oracle
at equal budget, and the coverage by source that it gives; what encoding a user's history once for
50 ads saves; and what students gain that read the store, trained on what it would have served.
"""

from __future__ import annotations

import argparse

from benchmarks import _solaris_coverage, _solaris_value
from benchmarks._measure import Bound, child, report

TARGETS: dict[str, Bound] = {
    **_solaris_coverage.TARGETS,
    "user_once_speedup": (">=", 5.0),
    **_solaris_value.TARGETS,
}


def main(argv: list[str]) -> int:
    """Measure and print; the last line is JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks solaris")
    parser.add_argument("--quick", action="store_true", help="one small world, not three")
    parser.add_argument("--seeds", type=int, default=0, help="of students; 3, or 1 when quick")
    parser.add_argument("--home", default="", help="folder that keeps the students' worlds")
    arguments = parser.parse_args(argv)
    figures = _solaris_coverage.figures(quick=arguments.quick)
    figures |= child("benchmarks._solaris_encode:encoding", quick=arguments.quick).value
    seeds = arguments.seeds or (1 if arguments.quick else 3)
    figures |= _solaris_value.figures(quick=arguments.quick, seeds=seeds, home=arguments.home)
    for name, value in figures.items():
        if not name.endswith(("_low", "_high")):
            low, high = figures.get(f"{name}_low"), figures.get(f"{name}_high")
            span = "" if low is None else f"  [{low:.4f}, {high:.4f}]"
            print(f"{name:30} {value:8.4f}{span}", flush=True)
    return report("solaris", figures, TARGETS)


if __name__ == "__main__":
    import sys

    sys.exit(main(sys.argv[1:]))
