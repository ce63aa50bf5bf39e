"""How fast planted days are made on two cores, and in how much memory.

`python -m benchmarks generator [--quick]`: consecutive days at the size `base` (1M impressions a
day, 100,000 users; --quick: 200,000 and 20,000), as the stage `land` makes them, in a process of
its own. `per_minute` is the rate, by the clock, of the days after the first, as a daily run makes
them; `start_per_minute` counts what was written over all of the process's time, with start-up and
the two days that are played before the first one for their late conversions. `growth_gb` is what a
day of twice the size adds to the memory.
"""

from __future__ import annotations

import argparse
import datetime as dt
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks._measure import Bound, Cost, child, interleaved, median, report

FIRST = dt.date(2026, 11, 20)
TARGETS: dict[str, Bound] = {"per_minute": (">=", 2e6), "start_per_minute": (">=", 2e6)}


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
        print(
            f"{name:12} {_rate(costs):12,.0f} impressions a minute, "
            f"{median(costs, 'memory_mb') / 1024:.2f} GB"
        )
    two = found["two threads"]
    figures = {
        "per_minute": _rate(two),
        "one_thread_per_minute": _rate(found["one thread"]),
        "start_per_minute": sum(two[0].value["rows"]) / median(two, "seconds") * 60,
        "processor_s_per_million": statistics.median(
            cost.value["processor_s"] / sum(cost.value["rows"][1:]) * 1e6 for cost in two
        ),
        "peak_gb": median(two, "memory_mb") / 1024,
        "growth_gb": (double.memory_mb - median(two, "memory_mb")) / 1024,
    }
    return report("generator", figures, TARGETS)


def make_days(rows: int, users: int, days: int, workers: int) -> dict[str, Any]:
    """Rows and seconds of consecutive days, and processor seconds of those after the first."""
    from pipeline.mixing.synthetic import generate_day
    from pipeline.run.config import with_overrides
    from pipeline.run.presets import preset

    sizes = {"source.planted.rows_per_day": rows, "source.planted.users": users}
    config = with_overrides(preset(FIRST.isoformat(), "base"), sizes)
    sold: dict[int, pa.Table] = {}
    written: list[float] = []
    seconds: list[float] = []
    processor_s = time.process_time()
    with tempfile.TemporaryDirectory(prefix="headwater-bench-") as folder:
        for day in (FIRST + dt.timedelta(days=n) for n in range(days)):
            if len(written) == 1:
                processor_s = time.process_time()
            began = time.monotonic()
            made = generate_day(config, day.isoformat(), Path(folder), sold=sold, threads=workers)
            seconds.append(time.monotonic() - began)
            written.append(float(made["impressions"]))
    spent = time.process_time() - processor_s
    return {"rows": written, "seconds": seconds, "processor_s": spent}


def _rate(costs: Iterable[Cost]) -> float:
    """Impressions a minute: the median over the days after the first."""
    days = [zip(c.value["rows"][1:], c.value["seconds"][1:], strict=True) for c in costs]
    return statistics.median(rows / seconds * 60 for day in days for rows, seconds in day)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
