"""What mixing costs beside ingest, what it copies, and what its rows cost beside the reference's.

`python -m benchmarks mix [--quick]` ingests and mixes the same planted days, taking turns, each
time through the stage in a fresh process, less what a process costs that only imports the stages.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from benchmarks._chain import up_to_timelines
from benchmarks._measure import Bound, child, interleaved, median, report
from pipeline.mixing.ingest import ingest
from pipeline.mixing.mix import mix
from pipeline.run.config import RunConfig, with_overrides
from pipeline.run.manifest import need_manifest
from pipeline.run.paths import open_run
from pipeline.run.presets import preset
from pipeline.run.resolve import resolve
from pipeline.run.runs import units_of

DAY = "2026-11-29"
DAYS = 3
TARGETS: dict[str, Bound] = {
    "share_of_ingest": ("<=", 0.2),
    "copied_bytes": ("<=", 0),
    "flops_ratio": ("<=", 1.0),
}


def main(argv: list[str]) -> int:
    """Measure and print; the last line is JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks mix")
    parser.add_argument("--quick", action="store_true", help="250,000 impressions a day, not 1M")
    parser.add_argument("--repeats", type=int, default=0, help="3, or 2 when quick")
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="headwater-bench-") as home:
        run = str(resolve(_config(250_000 if arguments.quick else 1_000_000), Path(home)))
        child("benchmarks.mix:prepare", folder=run)
        costs = interleaved(
            {
                "imports": lambda: child("benchmarks.mix:imports"),
                "ingest": lambda: child("benchmarks.mix:ingest_again", folder=run),
                "mix": lambda: child("benchmarks.mix:mix_again", folder=run),
            },
            arguments.repeats or (2 if arguments.quick else 3),
        )
        found = need_manifest(open_run(run).output("mix")).read_figures()
    idle = median(costs["imports"])
    seconds = {name: median(costs[name]) - idle for name in ("ingest", "mix")}
    for name, value in seconds.items():
        memory = median(costs[name], "memory_mb")
        print(f"{name:8} {value:7.2f} s of processor, {memory:6.0f} MB at most")
    for line in found["table"]:
        print("  " + "  ".join(f"{k} {v}" for k, v in line.items()))
    figures = {
        "share_of_ingest": seconds["mix"] / seconds["ingest"],
        "copied_bytes": float(found["feature_bytes_copied"]),
        "flops_ratio": float(found["flops_ratio"]),
        "ingest_s": seconds["ingest"],
        "mix_s": seconds["mix"],
    }
    return report("mix", figures, TARGETS)


def prepare(folder: str) -> None:
    """Every stage before the mix."""
    up_to_timelines(open_run(folder))


def ingest_again(folder: str) -> None:
    """All units of ingest, from the landed files, as if for the first time."""
    run = open_run(folder)
    shutil.rmtree(run.lake("canonical"))
    for unit in units_of(run, "ingest"):
        shutil.rmtree(run.output("ingest", unit))
        ingest(run, unit)


def mix_again(folder: str) -> None:
    """The mix, as if for the first time."""
    run = open_run(folder)
    shutil.rmtree(run.output("mix"), ignore_errors=True)
    mix(run)


def imports() -> None:
    """What a process that runs a stage costs before it does anything."""


def _config(rows: int) -> RunConfig:
    config = with_overrides(
        preset(DAY, "small"),
        {
            "source.planted.rows_per_day": rows,
            "source.planted.users": rows // 5,
            # two engagements per impression, as in the benchmark of ingest
            "source.planted.organic_per_user_day": 10.0,
            "source.planted.ads": 1_000,
            "window.bootstrap_days": DAYS,
            "window.student_days": DAYS - 1,
            "window.calibration_hours": 0,
        },
    )
    return replace(config, warm_start=False)


if __name__ == "__main__":
    import sys

    sys.exit(main(sys.argv[1:]))
