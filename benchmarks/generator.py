"""How fast planted days are made on two cores, and in how much memory.

`python -m benchmarks generator [--quick]`: consecutive days at the size `base` (1M impressions a
day, 100,000 users; --quick: 200,000 and 20,000), as the stage `land` makes them, in a process of
its own. `per_minute` counts what was written over all of its wall time: start-up and the two days
that are played before the first one (their late conversions) included. `day_per_minute` is of the
days after the first, as a daily run makes them; `growth_gb` is what a day of twice the size adds.
"""

from __future__ import annotations

import argparse
import datetime as dt
import statistics
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa

from benchmarks._measure import Bound, Cost, child, interleaved, median, report

FIRST = dt.date(2026, 11, 20)
TARGETS: dict[str, Bound] = {"per_minute": (">=", 2e6)}


def main(argv: list[str]) -> int:
    """Make days with one thread and with two, and days of twice the size; print the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks generator")
    parser.add_argument("--quick", action="store_true", help="smaller days, within a minute")
    quick = parser.parse_args(argv).quick
    rows, users, days = (200_000, 20_000, 2) if quick else (1_000_000, 100_000, 4)

    def make(workers: int, times: int = 1, days: int = days) -> Cost:
        return child(
            "benchmarks.generator:make_days",
            threads=workers,
            rows=times * rows,
            users=times * users,
            days=days,
            workers=workers,
        )

    contestants = {"two threads": lambda: make(2), "one thread": lambda: make(1)}
    found = interleaved(contestants, 1 if quick else 3)
    double = make(2, times=2, days=1)
    for name, costs in found.items():
        written = sum(costs[0].value["rows"])
        print(
            f"{name:12} {written / median(costs, 'seconds') * 60:12,.0f} impressions a minute, "
            f"{median(costs) / written * 1e6:6.1f} s of processor per million, "
            f"{median(costs, 'memory_mb') / 1024:.2f} GB"
        )
    two = found["two threads"]
    day_seconds = [s for cost in two for s in cost.value["seconds"][1:]]
    day_rows = [n for cost in two for n in cost.value["rows"][1:]]
    figures = {
        "per_minute": sum(two[0].value["rows"]) / median(two, "seconds") * 60,
        "day_per_minute": statistics.median(
            n / s * 60 for n, s in zip(day_rows, day_seconds, strict=True)
        ),
        "processor_s_per_million": median(two) / sum(two[0].value["rows"]) * 1e6,
        "peak_gb": median(two, "memory_mb") / 1024,
        "growth_gb": (double.memory_mb - median(two, "memory_mb")) / 1024,
    }
    return report("generator", figures, TARGETS)


def make_days(rows: int, users: int, days: int, workers: int) -> dict[str, list[float]]:
    """Make consecutive days in a temporary folder; rows and seconds of each."""
    from pipeline.mixing.synthetic import generate_day
    from pipeline.run.config import with_overrides
    from pipeline.run.presets import preset

    sizes = {"source.planted.rows_per_day": rows, "source.planted.users": users}
    config = with_overrides(preset(FIRST.isoformat(), "base"), sizes)
    sold: dict[int, pa.Table] = {}
    written, seconds = [], []
    with tempfile.TemporaryDirectory(prefix="headwater-bench-") as folder:
        for day in (FIRST + dt.timedelta(days=n) for n in range(days)):
            began = time.monotonic()
            made = generate_day(config, day.isoformat(), Path(folder), sold=sold, threads=workers)
            seconds.append(time.monotonic() - began)
            written.append(float(made["impressions"]))
    return {"rows": written, "seconds": seconds}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
