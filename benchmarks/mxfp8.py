"""What MXFP8 costs in NE: the same rows and seeds, trained in float32 and in emulated MXFP8.

`python -m benchmarks.mxfp8 [--quick]` trains every arm (benchmarks/_lowbit.py) on one planted world
and scores the same held-out hours against the planted probabilities. A cost is the rise of the
click's NE over float32 in percent; its interval is over users and seeds, both drawn anew.
`noise_ne_pct` is that difference between two float32 trainings whose first weights differ in the
last bits: what is smaller cannot be told from no cost. `control_ne_cost_pct` must be visible.
"""

from __future__ import annotations

import argparse
import sys
import tempfile

import polars as pl

from benchmarks._lowbit import AGAIN, BASE, COARSE, MXFP8, SERVED, TRAINED
from benchmarks._measure import Bound, child, median, report
from benchmarks._paired import OBJECTIVE, costs_pct, over_seeds, trained
from pipeline.evaluation.intervals import Interval
from pipeline.evaluation.metrics import Floats

COMPARED = (AGAIN, MXFP8, SERVED, COARSE)


def main(argv: list[str]) -> int:
    """Train, compare and print; the last line is JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mxfp8")
    parser.add_argument("--quick", action="store_true", help="12,000 impressions a day, 3 seeds")
    parser.add_argument("--seeds", type=int, default=0, help="5, or 3 when quick")
    parser.add_argument("--processes", type=int, default=2, help="trainings side by side")
    arguments = parser.parse_args(argv)
    seeds = arguments.seeds or (3 if arguments.quick else 5)
    with tempfile.TemporaryDirectory(prefix="headwater-bench-") as home:
        folder = child("benchmarks._lowbit:world", home=home, quick=arguments.quick).value
        costs = trained(
            "benchmarks._lowbit:train", TRAINED, seeds, arguments.processes, folder=folder
        )
        each = [
            _costs_pct({arm: costs[arm, seed].value for arm in TRAINED}) for seed in range(seeds)
        ]
    found = {arm: over_seeds([draws[arm] for draws in each]) for arm in COMPARED}
    for arm, cost in found.items():
        by_seed = " ".join(f"{draws[arm][0]:+.3f}" for draws in each)
        print(f"{arm:8} {cost.value:+.4f}% [{cost.low:+.4f}, {cost.high:+.4f}]  {by_seed}")
    spent = {arm: median(c for (a, _), c in costs.items() if a == arm) for arm in TRAINED}
    return report("mxfp8", _figures(found, spent), TARGETS)


TARGETS: dict[str, Bound] = {
    "mxfp8_ne_cost_pct": ("<=", 0.02),
    "control_ne_cost_low_pct": (">=", 0.0),
}


def _figures(found: dict[str, Interval], spent: dict[str, float]) -> dict[str, float]:
    return {
        "mxfp8_ne_cost_pct": found[MXFP8].value,
        "mxfp8_ne_cost_low_pct": found[MXFP8].low,
        "mxfp8_ne_cost_high_pct": found[MXFP8].high,
        "served_ne_cost_pct": found[SERVED].value,
        "served_ne_cost_high_pct": found[SERVED].high,
        "noise_ne_pct": found[AGAIN].value,
        "noise_ne_low_pct": found[AGAIN].low,
        "noise_ne_high_pct": found[AGAIN].high,
        "control_ne_cost_pct": found[COARSE].value,
        "control_ne_cost_low_pct": found[COARSE].low,
        "emulation_seconds_ratio": spent[MXFP8] / spent[BASE],
    }


def _costs_pct(paths: dict[str, str]) -> dict[str, Floats]:
    """Rise of the NE over the base's, in percent, on the rows as they are and on each draw."""
    frames = {arm: pl.read_parquet(path) for arm, path in paths.items()}
    served = frames[BASE].with_columns(pl.col(f"served_{OBJECTIVE}").alias(f"p_{OBJECTIVE}"))
    return costs_pct(frames | {SERVED: served}, BASE)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
