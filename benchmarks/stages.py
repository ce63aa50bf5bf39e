"""Seconds, processor seconds and memory of each stage of a planted day, without Airflow.

`python -m benchmarks stages [--quick] [--day 2026-11-29]` runs the size `small` (quick: `smoke`) in
a temporary home, one stage after the other, so that the figures are of the stages alone.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks._measure import child, report
from pipeline.run.launch import pipeline_command
from pipeline.run.paths import REPOSITORY, open_run
from pipeline.run.runs import CHAIN, units_of


def main(argv: list[str]) -> int:
    """Run the chain and print one line per stage, then the sums."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks stages")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--day", default="2026-11-29")
    arguments = parser.parse_args(argv)
    size = "smoke" if arguments.quick else "small"
    costs = []
    with tempfile.TemporaryDirectory(prefix="headwater-bench-") as home:
        environment = {"HEADWATER_HOME": home, "PYTHONPATH": str(REPOSITORY)}
        folder = subprocess.run(
            pipeline_command("resolve", "--day", arguments.day, "--size", size),
            env=os.environ | environment,
            check=True,
            capture_output=True,
            text=True,
        ).stdout.splitlines()[-1]
        for stage, unit in _steps(Path(folder)):
            command = pipeline_command(stage, "--run", folder, *(["--unit", unit] if unit else []))
            cost = child(command, environment=environment, threads=os.cpu_count() or 1)
            costs.append(cost)
            print(
                f"{f'{stage}[{unit}]' if unit else stage:28} {cost.seconds:7.1f} s "
                f"{cost.processor_s:7.1f} s of processor {cost.memory_mb:7.0f} MB",
                flush=True,
            )
    figures = {
        "seconds": sum(cost.seconds for cost in costs),
        "processor_s": sum(cost.processor_s for cost in costs),
        "peak_gb": max(cost.memory_mb for cost in costs) / 1024,
    }
    return report("stages", figures, {})


def _steps(folder: Path) -> list[tuple[str, str]]:
    run = open_run(folder)
    stages = [s for dag in CHAIN.values() for s in dag if s != "track"]  # it needs MLflow's server
    return [(stage, unit) for stage in stages for unit in units_of(run, stage)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
