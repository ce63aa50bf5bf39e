"""Seconds, processor seconds and memory of each stage of a planted day, without Airflow.

`python -m benchmarks stages [--size smoke] [--day 2026-11-29]` runs in a temporary home, one stage
after the other, so that the figures are of the stages alone.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from pipeline.run.launch import pipeline_command
from pipeline.run.paths import REPOSITORY, open_run
from pipeline.run.runs import CHAIN, units_of


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What one process took; `memory_mb` is its largest resident set."""

    seconds: float
    processor_s: float
    memory_mb: float


def main(argv: list[str]) -> int:
    """Run the chain and print one line per stage."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks stages")
    parser.add_argument("--size", default="small")
    parser.add_argument("--day", default="2026-11-29")
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="headwater-bench-") as home:
        environment = os.environ | {"HEADWATER_HOME": home, "PYTHONPATH": str(REPOSITORY)}
        request = ["resolve", "--day", arguments.day, "--size", arguments.size]
        folder = subprocess.run(
            pipeline_command(*request), env=environment, check=True, capture_output=True, text=True
        ).stdout.splitlines()[-1]
        total = 0.0
        for stage, unit in _steps(Path(folder)):
            name = f"{stage}[{unit}]" if unit else stage
            command = [
                *pipeline_command(stage, "--run", folder),
                *(["--unit", unit] if unit else []),
            ]
            cost = measure(command, environment)
            if cost is None:
                print(f"{name} failed; run it by hand to see why", file=sys.stderr)
                return 1
            total += cost.seconds
            print(
                f"{name:28} {cost.seconds:7.1f} s {cost.processor_s:7.1f} s of processor "
                f"{cost.memory_mb:7.0f} MB",
                flush=True,
            )
        print(f"{'all, one after the other':28} {total:7.1f} s")
    return 0


def measure(command: list[str], environment: dict[str, str]) -> Cost | None:
    """Run a command; its cost, or None when it failed."""
    began = time.monotonic()
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        return None
    return Cost(
        seconds=time.monotonic() - began,
        processor_s=usage.ru_utime + usage.ru_stime,
        memory_mb=usage.ru_maxrss / 1024,
    )


def _steps(folder: Path) -> list[tuple[str, str]]:
    run = open_run(folder)
    stages = [s for dag in CHAIN.values() for s in dag if s != "track"]  # it needs MLflow's server
    return [(stage, unit) for stage in stages for unit in units_of(run, stage)]
