"""What KD and LoopFM move to students: every arm of docs/transfer.md, planted and real logs.

`python -m benchmarks transfer [--quick] [--home FOLDER]`: a foundation model learns from the early
days and is frozen, every surface's students learn from the days after it in one pass, and the last
day (the preset's holdout of a public set) is scored. A seed is a world of its own on planted logs,
which are scored against the planted probabilities; on public sets it is another model and other
students on the same rows, scored against labels. TR is a student's gain in click NE over the
student without transfer by the model's own gain; it is given where that is at least .02 NE and
surely above 0. KD has the gamma that is best for it on the scored rows.

Figures are of planted logs: means over surfaces of what the seeds give together, `_min` the worst
surface. A ratio of TRs counts a TR of KD below `KD_FLOOR` as that much.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from benchmarks._measure import BenchmarkError, child, home_folder, report
from benchmarks._paired import mean_of_worlds
from pipeline.evaluation.intervals import Interval, interval, resample
from pipeline.evaluation.metrics import Floats
from pipeline.evaluation.transfer_ratio import transfer_ratio

DRAWS = 500
KD_FLOOR = 0.05
FULL, PAIR = "kd_raw_loopfm", "kd_loopfm"
FULL_SIZE = {"rows_per_day": 40_000, "users": 5_000}
QUICK_SIZE = {"rows_per_day": 14_000, "users": 1_800, "source.planted.ads": 160}
REAL: dict[str, tuple[str, dict[str, Any]]] = {
    "movielens": ("1998-04-22", {}),
    "tafeng": ("2001-02-28", {}),
}
QUICK_REAL: dict[str, dict[str, Any]] = {
    "movielens": {"window.bootstrap_days": 130, "window.student_days": 60},
    "tafeng": {"window.bootstrap_days": 28, "window.student_days": 22},
}
Key = tuple[str, str, str]  # source, variant, surface
Nes = dict[str, Floats]  # arm -> NE of each draw, the mean over seeds


@dataclass(frozen=True, kw_only=True)
class Contest:
    """One world of a source with a seed."""

    source: str
    seed: int
    function: str
    arguments: dict[str, Any]


def main(argv: list[str]) -> int:
    """Train, compare and print; the last line is JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks transfer")
    parser.add_argument("--quick", action="store_true", help="14,000 impressions a day, 2 seeds")
    parser.add_argument("--seeds", type=int, default=0, help="3, or 2 when quick")
    parser.add_argument("--sources", default="planted,movielens,tafeng")
    parser.add_argument("--home", default="", help="folder to keep, from which a rerun goes on")
    arguments = parser.parse_args(argv)
    seeds = arguments.seeds or (2 if arguments.quick else 3)
    contests = _contests(arguments.sources.split(","), seeds, arguments.quick)
    answers = [(c, a) for c in contests if (a := _contest(c, arguments.home)) is not None]
    cells = _cells(answers)
    _print_table(cells)
    planted = [answer for contest, answer in answers if contest.source == "planted"]
    figures = _transfer_figures(cells) | _format_figures(planted) | _speed_figures(planted)
    return report("transfer", figures, _targets())


def _targets() -> dict[str, Any]:
    return {
        "tr_ratio_min": (">=", 2.0),
        "tr_ratio_mean": (">=", 2.0),
        "tr_full": (">=", 0.65),
        "gain_over_kd_raw": (">=", 0.05),
        "gain_over_kd_raw_low": (">=", 0.0),
        "placebo_gap": ("<=", 0.03),
        "bound_tr": (">=", 0.85),
        "int8_ne_cost_pct": ("<=", 0.01),
        "kmeans4_ne_cost_pct": ("<=", 0.02),
        "represent_ratio": (">=", 0.9),
        "student_cost_ratio": ("<=", 1.3),
    }


def _contests(sources: Sequence[str], seeds: int, quick: bool) -> list[Contest]:
    """Seed by seed, so that a run that is stopped has every source."""
    found = []
    for seed in range(seeds):
        for source in sources:
            function = "planted_world" if source == "planted" else "real_world"
            arguments: dict[str, Any] = {
                "size": QUICK_SIZE if quick else FULL_SIZE,
                "kinds": "features" if quick else "all",
            }
            if source != "planted":
                if quick and seed:
                    continue  # a quick run has one seed of a public set
                day, changes = REAL[source]
                changes = QUICK_REAL[source] if quick else changes
                arguments = {"name": source, "day": day, "changes": changes}
            found.append(Contest(source=source, seed=seed, function=function, arguments=arguments))
    return found


def _contest(contest: Contest, home: str) -> dict[str, Any] | None:
    """One world in a process of its own; None where a public set cannot be had."""
    with home_folder(home, f"{contest.source}-{contest.seed}") as folder:
        what = f"benchmarks._transfer_arms:{contest.function}"
        try:
            cost = child(what, home=str(folder), seed=contest.seed, **contest.arguments)
        except BenchmarkError as error:
            if contest.source == "planted":
                raise
            print(f"{contest.source} is left out: {str(error).splitlines()[-1]}", flush=True)
            return None
        answer: dict[str, Any] = cost.value
        print(
            f"{contest.source}, seed {contest.seed}: {cost.processor_s:.0f} s of processor, "
            f"gamma {answer['gamma']:g}",
            flush=True,
        )
        answer["nes"] = _draws(answer)
        return answer


def _draws(answer: dict[str, Any]) -> dict[tuple[str, str], Nes]:
    """(variant, surface) -> arm -> NE of each draw; all of a surface's draws are paired.

    What a variant did not train again, the student without transfer aside, is the main one's.
    """
    gamma = f"gamma_{answer['gamma']:g}"
    found: dict[tuple[str, str], Nes] = {}
    for variant, paths in answer["scores"].items():
        if variant.startswith("gamma_"):
            continue
        for surface, path in paths.items():
            frame = pl.read_parquet(path)
            best = pl.read_parquet(answer["scores"][gamma][surface])["kd"]
            if "kd" not in frame.columns:
                frame = frame.with_columns(best)
            if "none" not in frame.columns:
                main = pl.read_parquet(answer["scores"]["main"][surface])
                frame = frame.with_columns(main["none"])
            arms = [c for c in frame.columns if c not in ("user_id", "judged", "y")]
            drawn = resample(
                frame["user_id"].to_numpy(),
                frame["judged"].to_numpy(),
                {arm: frame[arm].to_numpy() for arm in arms},
                draws=DRAWS,
                with_auc=False,
            )
            found[variant, surface] = {arm: d.ne_D for arm, d in drawn.items()}
    return found


def _cells(answers: Sequence[tuple[Contest, dict[str, Any]]]) -> dict[Key, Nes]:
    """Per source, variant and surface the mean over seeds, whose draws are independent.

    Seeds of a public set share their rows: their draws stay paired.
    """
    grouped: dict[Key, list[Nes]] = {}
    for contest, answer in answers:
        for (variant, surface), nes in answer["nes"].items():
            grouped.setdefault((contest.source, variant, surface), []).append(nes)
    return {
        key: {arm: _mean([nes[arm] for nes in seeds], key[0]) for arm in seeds[0]}
        for key, seeds in grouped.items()
    }


def _mean(seeds: Sequence[Floats], source: str) -> Floats:
    return mean_of_worlds(seeds) if source == "planted" else np.asarray(np.mean(seeds, axis=0))


def _print_table(cells: dict[Key, Nes]) -> None:
    print("NE of clicks by arm, and TR where the model's gain allows it")
    for (source, variant, surface), nes in cells.items():
        gain = interval(nes["none"] - nes["fm"])
        print(f"{source} {variant} {surface}: none {nes['none'][0]:.4f}, model {_spread(gain)}")
        for arm in nes:
            if arm in ("none", "fm"):
                continue
            tr = transfer_ratio(nes["none"], nes[arm], nes["fm"])
            gained = interval(nes["none"] - nes[arm])
            print(f"    {arm:14} {_spread(gained)}  TR {_spread(tr) if tr else 'not known'}")


def _transfer_figures(cells: dict[Key, Nes]) -> dict[str, float]:
    """The figures of transfer; those of public sets are named after them."""
    figures: dict[str, float] = {}
    for source in dict.fromkeys(key[0] for key in cells):
        for variant in dict.fromkeys(key[1] for key in cells if key[0] == source):
            mine = [nes for key, nes in cells.items() if key[:2] == (source, variant)]
            known = [n for n in mine if transfer_ratio(n["none"], n["none"], n["fm"])]
            name = "" if variant == "main" else f"_{variant}"
            name += "" if source == "planted" else f"_{source}"
            if known and PAIR in known[0]:
                figures |= _ratios(known, name)
            if known and FULL in known[0]:
                figures |= _full_figures(known, name)
    return figures


def _ratios(known: Sequence[Nes], name: str) -> dict[str, float]:
    ratios = [_tr(nes, PAIR)[0] / max(_tr(nes, "kd")[0], KD_FLOOR) for nes in known]
    return {
        f"tr_ratio_min{name}": min(ratios),
        f"tr_ratio_mean{name}": float(np.mean(ratios)),
        f"tr_kd{name}": _over(known, lambda nes: _tr(nes, "kd")).value,
        f"tr_kd_loopfm{name}": _over(known, lambda nes: _tr(nes, PAIR)).value,
    }


def _full_figures(known: Sequence[Nes], name: str) -> dict[str, float]:
    over = _over(known, lambda nes: _tr(nes, FULL) - _tr(nes, "kd_raw"))
    placebo = _over(known, lambda nes: _tr(nes, "placebo") - _tr(nes, "kd_raw"))
    return {
        f"tr_full{name}": _over(known, lambda nes: _tr(nes, FULL)).value,
        f"tr_full_min{name}": min(_tr(nes, FULL)[0] for nes in known),
        f"tr_raw{name}": _over(known, lambda nes: _tr(nes, "raw")).value,
        f"tr_loopfm{name}": _over(known, lambda nes: _tr(nes, "loopfm")).value,
        f"tr_kd_raw{name}": _over(known, lambda nes: _tr(nes, "kd_raw")).value,
        f"gain_over_kd_raw{name}": over.value,
        f"gain_over_kd_raw_low{name}": over.low,
        f"placebo_gap{name}": abs(placebo.value),
        f"bound_tr{name}": _over(known, lambda nes: _tr(nes, "bound")).value,
    }


def _tr(nes: Nes, arm: str) -> Floats:
    found: Floats = (nes["none"] - nes[arm]) / (nes["none"] - nes["fm"])
    return found


def _over(known: Sequence[Nes], value: Callable[[Nes], Floats]) -> Interval:
    """Mean over surfaces, with its interval."""
    return interval(np.mean([value(nes) for nes in known], axis=0))


def _format_figures(planted: Sequence[dict[str, Any]]) -> dict[str, float]:
    """What a format costs: NE of the same student with its vectors replaced, in percent."""
    figures: dict[str, float] = {}
    for name in ("int8", "int4", "kmeans4", "sign"):
        costs = [
            100 * (answer["formats"][name][s] - exact) / exact
            for answer in planted
            for s, exact in answer["formats"]["float32"].items()
        ]
        if costs:
            figures[f"{name}_ne_cost_pct"] = float(np.mean(costs))
    for name, count in (planted[0]["formats"]["bytes"] if planted else {}).items():
        figures[f"{name}_bytes"] = count
    return figures


def _speed_figures(planted: Sequence[dict[str, Any]]) -> dict[str, float]:
    names = ("represent_ratio", "student_cost_ratio")
    return {n: float(np.median([a["speed"][n] for a in planted])) for n in names if planted}


def _spread(found: Interval) -> str:
    return f"{found.value:+.4f} [{found.low:+.4f}, {found.high:+.4f}]"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
