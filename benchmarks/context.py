"""Long histories: what they cost a training step, and what NE more context buys.

`python -m benchmarks.context [--quick] [--record docs/experiments.md]`

Cost: the `small` Kunlun with window attention trains on jagged batches whose towers read up to
1,024 to 16,384 events each (half full, one row at the cap), every length in a process of its own.
`time_exponent` and `memory_exponent` are those of a step's processor seconds, and of what it adds
to the resident set, against events; `steepest_*` are those of the steepest neighbours, which no
fixed cost flattens. `peak_gb` is the whole process at the longest histories.

Gain: on a planted world with long memory (benchmarks/_long_memory.py) the same model trains with 1,
2, 5 and 25 times the shortest context. A gain is how much lower its NE against the planted
probabilities is, in percent of that of the shortest context, on the same seeds; the interval draws
users anew and adds the seeds' scatter.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import polars as pl

from benchmarks._experiments import replace_section, table
from benchmarks._long_memory import CONTEXTS, FULL, QUICK, TIMES
from benchmarks._measure import Bound, Cost, child, report
from benchmarks._paired import Task, nes, over_seeds, trained
from pipeline.evaluation.intervals import Interval
from pipeline.evaluation.metrics import normalized_entropy

LENGTHS = (1_024, 2_048, 4_096, 8_192, 16_384)
TARGETS: dict[str, Bound] = {
    "peak_gb": ("<=", 8.0),
    "time_exponent": ("<=", 1.1),
    "memory_exponent": ("<=", 1.1),
}
COST_HEAD = ("longest history", "events", "s a step", "us an event", "step adds, MB", "peak, GB")
GAIN_HEAD = ("context", "times", "NE", "gain %, 95% interval", "rows/s")
Measured = dict[int, dict[str, float]]


def main(argv: list[str]) -> int:
    """Measure, train, compare; the last line is JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.context")
    parser.add_argument("--quick", action="store_true", help="every second length, fewer rows")
    parser.add_argument("--processes", type=int, default=2, help="trainings side by side")
    parser.add_argument("--record", type=Path, help="file whose tables are renewed")
    arguments = parser.parse_args(argv)
    quick = arguments.quick
    measured = _measured(LENGTHS[::2] if quick else LENGTHS, 32 if quick else 128)
    costs = table(COST_HEAD, _cost_rows(measured))
    print(costs, flush=True)
    runs, gains = _gains(quick, 2 if quick else 3, arguments.processes)
    curve = table(GAIN_HEAD, _gain_rows(runs, gains))
    print(curve)
    if arguments.record:
        replace_section(arguments.record, "context", _section(quick, measured, costs, runs, curve))
    return report("context", _figures(measured, gains), TARGETS)


def _measured(lengths: Sequence[int], num_rows: int) -> Measured:
    found = {}
    for length in lengths:
        given: dict[str, Any] = {"length": length, "num_rows": num_rows, "repeats": 3}
        found[length] = child("benchmarks._lengths:at_length", **given).value | {"rows": num_rows}
    return found


def exponent(points: Sequence[tuple[float, float]]) -> float:
    """Least squares of log y on log x."""
    x, y = np.log(np.asarray(points, np.float64)).T
    return float(np.polyfit(x, y, 1)[0])


def steepest(points: Sequence[tuple[float, float]]) -> float:
    """The largest exponent between neighbours."""
    return max(math.log(d / b) / math.log(c / a) for (a, b), (c, d) in pairwise(points))


def _gains(quick: bool, seeds: int, processes: int) -> tuple[dict[Task, Cost], dict[str, Interval]]:
    """What the trainings took, with their NE, and the gain of each longer context."""
    arms = tuple(str(context) for context in CONTEXTS)
    with tempfile.TemporaryDirectory(prefix="headwater-bench-") as home:
        folder = child("benchmarks._long_memory:world", home=home, quick=quick).value
        runs = trained("benchmarks._long_memory:train", arms, seeds, processes, folder=folder)
        each: list[dict[str, Any]] = []
        for seed in range(seeds):
            frames = {arm: pl.read_parquet(runs[arm, seed].value["scores"]) for arm in arms}
            ne = nes(frames)
            each.append({a: 100 * (ne[arms[0]] - ne[a]) / ne[arms[0]] for a in arms[1:]})
            for arm in arms:
                runs[arm, seed].value["ne"] = float(ne[arm][0])
            true_N = frames[arms[0]]["true_click"].to_numpy()
            runs[arms[0], seed].value["bayes"] = normalized_entropy(true_N, true_N)
    return runs, {arm: over_seeds([draws[arm] for draws in each]) for arm in arms[1:]}


def _cost_rows(measured: Measured) -> list[list[str]]:
    return [
        [
            f"{length:,}",
            f"{found['events']:,.0f}",
            f"{found['seconds']:.2f}",
            f"{1e6 * found['seconds'] / found['events']:.1f}",
            f"{found['step_bytes'] / 1e6:,.0f}",
            f"{found['peak_gb']:.2f}",
        ]
        for length, found in measured.items()
    ]


def _gain_rows(runs: dict[Task, Cost], gains: dict[str, Interval]) -> list[list[str]]:
    rows = []
    for context, times in zip(CONTEXTS, TIMES, strict=True):
        mine = [cost.value for (arm, _), cost in runs.items() if arm == str(context)]
        ne = " ".join(f"{found['ne']:.4f}" for found in mine)
        rate = f"{median(found['rows_per_s'] for found in mine):.0f}"
        rows.append([str(context), f"x{times}", ne, _gain(gains.get(str(context))), rate])
    return rows


def _gain(found: Interval | None) -> str:
    if found is None:
        return "0"
    noise = ", within noise" if found.low <= 0 <= found.high else ""
    return f"{found.value:+.2f} [{found.low:+.2f}, {found.high:+.2f}]{noise}"


def _figures(measured: Measured, gains: dict[str, Interval]) -> dict[str, float]:
    seconds = [(m["events"], m["seconds"]) for m in measured.values()]
    memory = [(m["events"], m["step_bytes"]) for m in measured.values()]
    figures = {
        "peak_gb": measured[max(measured)]["peak_gb"],
        "time_exponent": exponent(seconds),
        "memory_exponent": exponent(memory),
        "steepest_time_exponent": steepest(seconds),
        "steepest_memory_exponent": steepest(memory),
    }
    for times, (_, gain) in zip(TIMES[1:], gains.items(), strict=True):
        figures |= {
            f"context_x{times}_gain_pct": gain.value,
            f"context_x{times}_gain_low_pct": gain.low,
            f"context_x{times}_gain_high_pct": gain.high,
        }
    return figures


def _section(
    quick: bool, measured: Measured, costs: str, runs: dict[Task, Cost], curve: str
) -> str:
    size, first = QUICK if quick else FULL, runs[str(CONTEXTS[0]), 0].value
    rows = next(iter(measured.values()))["rows"]
    return (
        "### Tables of long context\n\n"
        f"`python -m benchmarks.context{' --quick' if quick else ''}`. A training step of `small` "
        f"on {rows:.0f} rows, both towers reading up to the longest history, half full, one "
        f"thread:\n\n{costs}\n\nNE against the planted truth, by seed, of {size.users} users with "
        f"40 events a day whose click logit remembers {CONTEXTS[-1]} of them; {first['rows']:,} "
        f"rows with soft labels in one pass; Bayes NE {first['bayes']:.4f}:\n\n{curve}"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
