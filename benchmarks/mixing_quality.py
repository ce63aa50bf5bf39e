"""Does the mix make one model good on every surface? Against a model per surface, and other mixes.

`python -m benchmarks mixing_quality [--quick] [--abreast 2] [--home FOLDER]` trains every arm on
the same logs with the same trainer and scores the same held-out hours: the mix (alpha .7), natural
shares (alpha 1), equal shares (alpha 0), and one model per surface at the same total FLOPs. Planted
worlds have surfaces of .65/.25/.10; their NE and click calibration are measured against the planted
probabilities, which have no label noise. MovieLens has labels alone; its seeds hold out three spans
of 20 days that follow each other, since one span's rates say little of another's. Intervals are
over users, of the mean over seeds, no two of which share a held-out row.

All arms have the `small` model with one layer instead of two: rows cost .6 of the time. What
decides how well a level can be known is the clicks: 150,000 impressions a day for six days leave
2,000 of the smallest surface in the three days that fit the intercepts, 6,000 over the seeds, a
standard error of 1.3 %; the quick size leaves 108 a seed. MovieLens has labels of 130 to 197 users
to judge by, an interval of 4 to 7 % to either side: its cells count in `calibration_min` and
`calibration_max`, and the planted ones stand beside them on their own. The budget is that of the
largest surface alone.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import polars as pl

from benchmarks._arms import MIX, MOVIELENS_DAYS, NATURAL, UNIFORM
from benchmarks._measure import BenchmarkError, child, home_folder, report
from benchmarks._paired import mean_of_worlds
from pipeline.evaluation.intervals import Draws, Interval, interval, resample
from pipeline.evaluation.metrics import Floats

DRAWS = 500
OWN = "own"
SPARSE = "conversion"
Key = tuple[str, str, str]  # source, surface, objective


def main(argv: list[str]) -> int:
    """Train, compare and print; the last line is JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks mixing_quality")
    parser.add_argument("--quick", action="store_true", help="12,000 impressions a day, 2 seeds")
    parser.add_argument("--seeds", type=int, default=0, help="3, or 2 when quick")
    parser.add_argument("--threads", type=int, default=1, help="of each process")
    parser.add_argument("--abreast", type=int, default=1, help="processes at the same time")
    parser.add_argument("--home", default="", help="folder to keep, from which a rerun goes on")
    arguments = parser.parse_args(argv)
    contests = _contests(arguments.quick, arguments.seeds or (2 if arguments.quick else 3))
    with ThreadPoolExecutor(arguments.abreast) as pool:
        answers = list(pool.map(lambda c: _contest(c[0], c[1], arguments), contests))
    cells: dict[Key, list[dict[str, Draws]]] = {}
    largest: dict[str, str] = {}
    flops: list[float] = []
    for (source, _), found in zip(contests, answers, strict=True):
        if found is not None:
            largest[source] = found["largest"]
            flops.append(found["flops"][MIX] / found["flops"][NATURAL])
            for (surface, objective), drawn in found["draws"].items():
                cells.setdefault((source, surface, objective), []).append(drawn)
    _table(cells)
    figures, targets = _verdict(cells, largest)
    return report("mixing_quality", figures | {"flops_vs_own": max(flops)}, targets)


def _contests(quick: bool, seeds: int) -> list[tuple[str, int]]:
    """(source, seed) of every contest; a quick run has one of MovieLens."""
    real = min(seeds, 1 if quick else len(MOVIELENS_DAYS))
    return [("planted", s) for s in range(seeds)] + [("movielens", s) for s in range(real)]


def _contest(source: str, seed: int, arguments: argparse.Namespace) -> dict[str, Any] | None:
    """One seed of a source in a process of its own, and the draws of every cell."""
    with home_folder(arguments.home, f"{source}-{seed}") as home:
        given: dict[str, Any] = {
            "home": str(home),
            "seed": seed,
            "quick": arguments.quick,
            "processors": arguments.threads,
        }
        try:
            cost = child(f"benchmarks._arms:{source}", threads=arguments.threads, **given)
        except BenchmarkError as error:
            if source == "planted":
                raise
            print(f"{source} is left out: {str(error).splitlines()[-1]}", flush=True)
            return None
        print(f"{source}, seed {seed}: {cost.processor_s:.0f} s of processor", flush=True)
        found: dict[str, Any] = cost.value
        found["draws"] = _draws(found)
        return found


def _draws(found: dict[str, Any]) -> dict[tuple[str, str], dict[str, Draws]]:
    """(surface, objective) -> arm -> paired draws; "labels" are the mix's draws on labels."""
    frames = {arm: pl.read_parquet(path) for arm, path in found["arms"].items()}
    drawn = {}
    for surface in found["surfaces"]:
        arms = {a: frames[a].filter(pl.col("surface") == surface) for a in (MIX, NATURAL, UNIFORM)}
        arms[OWN] = frames[surface]
        for objective in found["objectives"]:
            rows = {a: f.filter(pl.col(f"m_{objective}")) for a, f in arms.items()}
            drawn[surface, objective] = _cell(rows, objective)
    return drawn


def _cell(rows: dict[str, pl.DataFrame], objective: str) -> dict[str, Draws]:
    base = rows[MIX]
    for arm, frame in rows.items():
        if not frame["impression_id"].equals(base["impression_id"]):
            raise BenchmarkError(f"arm {arm} scored other rows than the mix; its holdout differs")
    predictions = {arm: frame[f"p_{objective}"].to_numpy() for arm, frame in rows.items()}
    labels, users = base[f"y_{objective}"].to_numpy(), base["user_id"].to_numpy()
    true = f"true_{objective}"
    judged = base[true].to_numpy() if true in base.columns else labels
    drawn = resample(users, judged, predictions, draws=DRAWS, with_auc=False)
    on_labels = resample(users, labels, {"labels": predictions[MIX]}, draws=DRAWS, with_auc=False)
    return drawn | on_labels


def _mean(drawn: list[dict[str, Draws]], value: Callable[[dict[str, Draws]], Floats]) -> Interval:
    """Value and interval of the mean over seeds, independent as they share no row."""
    return interval(mean_of_worlds([value(seed) for seed in drawn]))


def _gain(other: str) -> Callable[[dict[str, Draws]], Floats]:
    return lambda drawn: drawn[other].ne_D - drawn[MIX].ne_D


def _gain_pct(drawn: dict[str, Draws]) -> Floats:
    return 100 * (drawn[OWN].ne_D - drawn[MIX].ne_D) / drawn[OWN].ne_D


def _calibration(arm: str) -> Callable[[dict[str, Draws]], Floats]:
    return lambda drawn: drawn[arm].calibration_D


def _table(cells: dict[Key, list[dict[str, Draws]]]) -> None:
    """One line per surface and objective: NE of the mix, what it gains, its calibration."""
    print(
        "NE of the mix, and how much lower it is than that of own models, natural and equal shares"
    )
    for (source, surface, objective), drawn in cells.items():
        ne = _mean(drawn, lambda d: d[MIX].ne_D).value
        gains = "  ".join(
            f"{arm} {_spread(_mean(drawn, _gain(arm)))}" for arm in (OWN, NATURAL, UNIFORM)
        )
        calibration = _spread(_mean(drawn, _calibration("labels")))
        print(
            f"{source:9} {surface:8} {objective:11} {ne:.4f}  {gains}  "
            f"calibration {_mean(drawn, _calibration(MIX)).value:.3f}, on labels {calibration}"
        )


def _verdict(
    cells: dict[Key, list[dict[str, Draws]]], largest: dict[str, str]
) -> tuple[dict[str, float], dict[str, Any]]:
    clicks = {k: v for k, v in cells.items() if k[2] == "click"}
    sparse = {k: v for k, v in cells.items() if k[2] == SPARSE}
    levels = {key: _mean(v, _calibration(MIX)).value for key, v in clicks.items()}
    known = [level for key, level in levels.items() if key[0] == "planted"]
    on_labels = [_mean(v, _calibration("labels")) for v in sparse.values()]
    worst = min(
        (_mean(v, _gain_pct) for k, v in clicks.items() if k[1] == largest[k[0]]),
        key=lambda found: found.high,
    )
    smaller = [_mean(v, _gain(OWN)).value for k, v in clicks.items() if k[1] != largest[k[0]]]
    gains = {
        name: float(np.mean([_mean(v, _gain(OWN)).value for v in part.values()]))
        for name, part in (("click", clicks), (SPARSE, sparse))
    }
    others = {
        arm: float(np.mean([_mean(v, _gain(arm)).value for v in clicks.values()]))
        for arm in (NATURAL, UNIFORM)
    }
    figures = {
        "calibration_min": min(levels.values()),
        "calibration_max": max(levels.values()),
        "planted_calibration_min": min(known),
        "planted_calibration_max": max(known),
        "conversion_calibrated": float(np.mean([i.low <= 1 <= i.high for i in on_labels])),
        "worst_surface_gain_pct": worst.value,
        "worst_surface_gain_high_pct": worst.high,
        "smaller_surface_gain_ne": min(smaller),
        "click_gain_ne": gains["click"],
        "conversion_gain_ne": gains[SPARSE],
        "sparse_minus_click_gain_ne": gains[SPARSE] - gains["click"],
        "gain_over_natural_ne": others[NATURAL],
        "gain_over_uniform_ne": others[UNIFORM],
    }
    targets = {
        "calibration_min": (">=", 0.97),
        "calibration_max": ("<=", 1.03),
        "conversion_calibrated": (">=", 1.0),
        # "not worse within its interval": the interval of the worst one reaches 0
        "worst_surface_gain_high_pct": (">=", 0.0),
        "smaller_surface_gain_ne": (">=", 0.01),
        "sparse_minus_click_gain_ne": (">=", 0.0),
    }
    return figures, targets


def _spread(found: Interval) -> str:
    return f"{found.value:+.4f} [{found.low:+.4f}, {found.high:+.4f}]"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
