"""What the benchmarks share: a contestant in a process of its own, medians, and the last line.

A contestant is a command, or a function `"module:name"` that takes JSON keyword arguments; it runs
in a fresh interpreter, so that its processor time and its largest resident set are its own.
"""

from __future__ import annotations

import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pipeline.run.paths import REPOSITORY

Bound = tuple[Literal["<=", ">="], float]


class BenchmarkError(RuntimeError):
    """A contestant failed, or what a benchmark needs is not installed."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What one process took; `memory_mb` is its largest resident set, `value` what it returned."""

    seconds: float
    processor_s: float
    memory_mb: float
    value: Any = field(default=None, compare=False)


def child(
    what: Sequence[str] | str,
    /,
    *,
    environment: Mapping[str, str] | None = None,
    threads: int = 1,
    **arguments: Any,
) -> Cost:
    """Run a command, or a function `"module:name"`, as a process; `BenchmarkError` when it fails.

    A function's JSON-ready result comes back as `value`. Start-up of the interpreter is part of the
    cost: subtract that of `"benchmarks._measure:nothing"` where it matters. `threads` bounds the
    pools of polars, Arrow and OpenMP.
    """
    bounds = dict.fromkeys(("OMP_NUM_THREADS", "POLARS_MAX_THREADS"), str(threads))
    paths = os.pathsep.join(p for p in (str(REPOSITORY), os.environ.get("PYTHONPATH", "")) if p)
    given = os.environ | bounds | {"PYTHONPATH": paths} | dict(environment or {})
    with tempfile.TemporaryDirectory(prefix="headwater-bench-") as folder:
        answer = Path(folder) / "value.json"
        command = list(what)
        if isinstance(what, str):
            call = json.dumps({"function": what, "arguments": arguments, "answer": str(answer)})
            command = [sys.executable, "-m", "benchmarks._measure", call]
        elif arguments:
            raise BenchmarkError(f"a command takes no arguments by name, got {sorted(arguments)}")
        cost = _timed(command, given, Path(folder) / "stderr")
        value = json.loads(answer.read_text()) if answer.exists() else None
    return Cost(
        seconds=cost.seconds,
        processor_s=cost.processor_s,
        memory_mb=cost.memory_mb,
        value=value,
    )


@contextmanager
def home_folder(kept: str, name: str) -> Iterator[Path]:
    """The folder `name` in a folder to keep, from which a rerun goes on; else a temporary one."""
    if kept:
        folder = Path(kept) / name
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="headwater-bench-") as made:
        yield Path(made)


def nothing() -> None:
    """A contestant that does nothing: what starting an interpreter costs."""


def interleaved(
    contestants: Mapping[str, Callable[[], Cost]], repeats: int
) -> dict[str, list[Cost]]:
    """Every contestant `repeats` times, taking turns, so that a busy minute hits all alike."""
    found: dict[str, list[Cost]] = {name: [] for name in contestants}
    for _ in range(repeats):
        for name, run in contestants.items():
            found[name].append(run())
    return found


def median(costs: Iterable[Cost], what: str = "processor_s") -> float:
    """The median of one field of several costs."""
    return statistics.median(getattr(cost, what) for cost in costs)


def report(name: str, figures: Mapping[str, float], targets: Mapping[str, Bound]) -> int:
    """Print the figures as the benchmark's last line, one JSON object; always returns 0.

    `holds` says whether every target is met; a target without a figure is not.
    """
    line = {
        "benchmark": name,
        "figures": {k: float(f"{v:.4g}") for k, v in figures.items()},
        "targets": {k: list(bound) for k, bound in targets.items()},
        "holds": all(_met(figures.get(k), bound) for k, bound in targets.items()),
    }
    print(json.dumps(line), flush=True)
    return 0


def _met(figure: float | None, bound: Bound) -> bool:
    if figure is None:
        return False
    return figure <= bound[1] if bound[0] == "<=" else figure >= bound[1]


def _timed(command: list[str], environment: Mapping[str, str], errors: Path) -> Cost:
    began = time.monotonic()
    with errors.open("wb") as stderr:
        process = subprocess.Popen(
            command, env=dict(environment), stdout=subprocess.DEVNULL, stderr=stderr
        )
        _, status, usage = os.wait4(process.pid, 0)
    seconds = time.monotonic() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        tail = errors.read_text(errors="replace").strip()[-2_000:]
        raise BenchmarkError(f"{' '.join(command)} ended with {process.returncode}:\n{tail}")
    return Cost(
        seconds=seconds,
        processor_s=usage.ru_utime + usage.ru_stime,
        memory_mb=usage.ru_maxrss / 1024,
    )


def _answer(call: dict[str, Any]) -> None:
    module, _, name = call["function"].partition(":")
    value = getattr(importlib.import_module(module), name)(**call["arguments"])
    Path(call["answer"]).write_text(json.dumps(value))


if __name__ == "__main__":
    _answer(json.loads(sys.argv[1]))
