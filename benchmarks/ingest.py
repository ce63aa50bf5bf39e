"""Ingest, labels and timelines against reading and rewriting the same bytes.

`python -m benchmarks.ingest [--quick]`: 5M impressions of twenty columns and 10M engagements
(quick: 400k and 800k), each contestant in a process of its own on one thread. Processor seconds
of the work, without starting interpreters; medians. `growth_4x`: against four times fewer rows.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks._measure import Bound, Cost, child, interleaved, median, report

FULL, QUICK = 5_000_000, 400_000
TARGETS: dict[str, Bound] = {
    "copy_ratio": ("<=", 3.0),
    "peak_gb": ("<=", 2.0),
    "growth_4x": ("<=", 4.4),
}


def main(argv: list[str]) -> int:
    """Run the contestants and print a line each, then the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ingest")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rows", type=int, default=0, help="impressions; engagements are twice")
    arguments = parser.parse_args(argv)
    rows = arguments.rows or (QUICK if arguments.quick else FULL)
    with tempfile.TemporaryDirectory(prefix="headwater-bench-") as folder:
        large, small = Path(folder) / "large", Path(folder) / "small"
        for home, count in ((large, rows), (small, rows // 4)):
            child("benchmarks.ingest:land_rows", home=str(home), rows=count)
        contestants: dict[str, Callable[[], Cost]] = {
            "polars copy": lambda: _copy(large, "polars"),
            "pyarrow copy": lambda: _copy(large, "pyarrow"),
            "plane": lambda: child("benchmarks.ingest:run_plane", home=str(large)),
            "plane, a quarter": lambda: child("benchmarks.ingest:run_plane", home=str(small)),
        }
        costs = interleaved(contestants, 1 if arguments.quick else 3)
    work = {
        name: statistics.median(sum(c.value.values()) for c in found)
        for name, found in costs.items()
    }
    for name, found in costs.items():
        print(
            f"{name:18} {work[name]:7.2f} s of processor {median(found, 'seconds'):7.2f} s in all "
            f"{median(found, 'memory_mb'):6.0f} MB"
        )
    for stage in costs["plane"][0].value:
        spent = statistics.median(c.value[stage] for c in costs["plane"])
        print(f"  {stage:16} {spent:7.2f} s of processor")
    large_mb, small_mb = (median(costs[n], "memory_mb") for n in ("plane", "plane, a quarter"))
    figures = {
        "copy_ratio": work["plane"] / min(work["polars copy"], work["pyarrow copy"]),
        "peak_gb": max(c.memory_mb for c in costs["plane"]) / 1024,
        "growth_4x": work["plane"] / work["plane, a quarter"],
        "peak_growth_4x": large_mb / small_mb,
    }
    return report("ingest", figures, TARGETS)


def _copy(home: Path, how: str) -> Cost:
    return child("benchmarks.ingest:copy", home=str(home), how=how)


def land_rows(home: str, rows: int) -> None:
    """Land a log of `rows` impressions and twice as many engagements below `home`."""
    from benchmarks._plane_world import config_of, land, run_of

    land(run_of(Path(home), config_of()), rows, 2 * rows)


def run_plane(home: str) -> dict[str, float]:
    """Run the stages in an empty lake; processor seconds by stage, imports apart."""
    from benchmarks._plane_world import config_of, run_of
    from pipeline.mixing.ingest import ingest
    from pipeline.mixing.labels import labels
    from pipeline.mixing.timeline import timelines
    from pipeline.run.runs import units_of

    run = run_of(Path(home), config_of())
    shutil.rmtree(run.lake(), ignore_errors=True)
    stages = {"ingest": ingest, "labels": labels, "timelines": timelines}
    spent = {}
    for name, stage in stages.items():
        shutil.rmtree(run.output(name), ignore_errors=True)
        began = time.process_time()
        for unit in units_of(run, name):
            stage(run, unit)
        spent[name] = time.process_time() - began
    return spent


def copy(home: str, how: str) -> dict[str, float]:
    """Read every landed file and write it again with the same codec; processor seconds."""
    import polars as pl
    import pyarrow.parquet as pq

    began = time.process_time()
    with tempfile.TemporaryDirectory(prefix="headwater-bench-", dir=home) as folder:
        for place, path in enumerate(sorted(Path(home).rglob("*.parquet"))):
            if "landing" not in path.parts:
                continue
            target = Path(folder) / f"{place}.parquet"
            if how == "polars":
                scan = pl.scan_parquet(path, hive_partitioning=False)
                scan.sink_parquet(target, compression="snappy")
            else:
                pq.write_table(pq.read_table(path, partitioning=None, use_threads=False), target)
    return {"copy": time.process_time() - began}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
