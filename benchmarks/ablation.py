"""What each part of Kunlun costs and gives: FLOPs, speed and NE of the model without it.

`python -m benchmarks.ablation [--quick] [--record docs/experiments.md]` counts and times every arm
(benchmarks/_removals.py) at a production-like shape, trains it at a small one on the same planted
rows with the same seeds, and scores the same held-out hours against the planted probabilities.

FLOPs are forward, per row, from true lengths: at the production shape all towers have 1,024 events.
Samples/s are training rows per second of one processor, arms taking turns. An NE cost is the rise
of the click's NE over full Kunlun in percent, on the same seeds; its interval draws users anew and
adds the seeds' scatter. An interval that holds 0 claims nothing: it is within noise.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean, median
from typing import Any

import polars as pl

from benchmarks._experiments import replace_section, table
from benchmarks._measure import Bound, child, report
from benchmarks._paired import costs_pct, over_seeds
from benchmarks._removals import EVENTS, FULL, QUICK, REMOVALS, WHOLE, production_mflop
from benchmarks._trials import World
from pipeline.evaluation.intervals import Interval

TITLES = {
    WHOLE: "full Kunlun",
    "no_gdpa": "without GDPA",
    "pma": "HSP -> PMA",
    "no_sumkron": "without SumKronLinear",
    "no_ad_products": "without products with the ad",
    "full_attention": "without sliding window (full attention)",
    "block_attention": "sliding window -> block attention",
    "no_compskip": "without CompSkip",
    "no_personalization": "without event personalization",
    "no_domain_experts": "without domain experts",
    "user_context": "gdpa_context = user",
}
HEAD = (
    "arm",
    "GFLOP, production",
    "relative",
    "samples/s, production",
    "MFLOP, trained",
    "relative",
    "samples/s, trained",
    "NE cost %, 95% interval",
    "",
)
TARGETS: dict[str, Bound] = {
    "compskip_flops_saved": (">=", 0.30),
    "window_flops_saved": (">=", 0.25),
}
Runs = list[dict[str, dict[str, Any]]]  # by seed and arm


def main(argv: list[str]) -> int:
    """Count, time, train, compare; the last line is JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ablation")
    parser.add_argument("--quick", action="store_true", help="6,000 impressions a day")
    parser.add_argument("--seeds", type=int, default=3, help="at least 2")
    parser.add_argument("--processes", type=int, default=2, help="trainings side by side")
    parser.add_argument("--record", type=Path, help="file whose table of the ablation is renewed")
    arguments = parser.parse_args(argv)
    quick = arguments.quick
    shape: dict[str, Any] = (
        {"repeats": 3, "num_rows": 4} if quick else {"repeats": 5, "num_rows": 8}
    )
    speeds = child("benchmarks._removals:race", **shape).value
    with tempfile.TemporaryDirectory(prefix="headwater-bench-") as home:
        folder = child("benchmarks._removals:world", home=home, quick=quick).value
        runs = _trained(folder, arguments.seeds, arguments.processes)
        found = _costs(runs)
    rows = _rows(speeds, runs, found)
    print(table(HEAD, rows))
    if arguments.record:
        replace_section(arguments.record, "ablation", _section(rows, runs, quick, shape))
    return report("ablation", _figures(found), TARGETS)


def _trained(folder: str, seeds: int, processes: int) -> Runs:
    """By seed what the arms took; the arms of a seed take turns in a process of their own."""

    def train(seed: int) -> dict[str, dict[str, Any]]:
        cost = child("benchmarks._removals:train", folder=folder, seed=seed)
        print(f"seed {seed}: {cost.processor_s:.0f} s of processor", flush=True)
        found: dict[str, dict[str, Any]] = cost.value
        return found

    with ThreadPoolExecutor(processes) as pool:
        return list(pool.map(train, range(seeds)))


def _costs(runs: Runs) -> dict[str, Interval]:
    """Rise of the NE over full Kunlun's in percent, by arm."""
    each = [
        costs_pct({arm: pl.read_parquet(run["scores"]) for arm, run in found.items()}, WHOLE)
        for found in runs
    ]
    return {arm: over_seeds([draws[arm] for draws in each]) for arm in REMOVALS if arm != WHOLE}


def _rows(
    speeds: dict[str, list[float]], runs: Runs, found: dict[str, Interval]
) -> list[list[str]]:
    large = {arm: production_mflop(arm) for arm in REMOVALS}
    small = {a: fmean(found[a]["mflop"] for found in runs) for a in REMOVALS}
    rates = {a: median(found[a]["rows_per_s"] for found in runs) for a in REMOVALS}
    return [
        [
            TITLES[arm],
            f"{large[arm] / 1e3:.2f}",
            _relative(large, arm),
            f"{median(speeds[arm]):.2f}",
            f"{small[arm]:.2f}",
            _relative(small, arm),
            f"{rates[arm]:.0f}",
            *_cost(found.get(arm)),
        ]
        for arm in REMOVALS
    ]


def _relative(values: dict[str, float], arm: str) -> str:
    return f"{100 * (values[arm] / values[WHOLE] - 1):+.1f} %"


def _cost(found: Interval | None) -> list[str]:
    """An NE cost and what may be said of it."""
    if found is None:
        return ["0", ""]
    apart = found.low > 0 or found.high < 0
    verdict = ("worse" if found.value > 0 else "better") if apart else "within noise"
    return [f"{found.value:+.3f} [{found.low:+.3f}, {found.high:+.3f}]", verdict]


def _figures(found: dict[str, Interval]) -> dict[str, float]:
    flops = {arm: production_mflop(arm) for arm in REMOVALS}
    saved = {
        "compskip_flops_saved": 1 - flops[WHOLE] / flops["no_compskip"],
        "window_flops_saved": 1 - flops[WHOLE] / flops["full_attention"],
        "block_flops_saved": 1 - flops["block_attention"] / flops["full_attention"],
    }
    for arm, cost in found.items():
        saved |= {
            f"{arm}_ne_cost_pct": cost.value,
            f"{arm}_ne_cost_low_pct": cost.low,
            f"{arm}_ne_cost_high_pct": cost.high,
        }
    return saved


def _section(rows: list[list[str]], runs: Runs, quick: bool, shape: dict[str, Any]) -> str:
    world: World = QUICK if quick else FULL
    trained_rows = runs[0][WHOLE]["rows"]
    return (
        "### Table of the ablation\n\n"
        f"`python -m benchmarks.ablation{' --quick' if quick else ''}`: planted logs of "
        f"{world.days} days at {world.rows_per_day} impressions, {world.users} users and "
        f"{world.ads} ads; {trained_rows} rows in one pass, {len(runs)} seeds. Production shape: "
        f"`base` with towers of 256/8/32/3/100 and 128/4/16/2/50 (width, heads, tokens, layers, "
        f"window), {EVENTS} events in each; its speed on batches of {shape['num_rows']} rows half "
        "full, median. Trained shape: `small` with 3 layers, 16 seeds, towers of 32/4/8/3/8 and "
        "16/2/4/1/4 and at most 64 and 32 events.\n\n" + table(HEAD, rows)
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
