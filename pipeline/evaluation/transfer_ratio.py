"""Metrics of students' arms on the same rows, with intervals over users and seeds, and TR.

TR (transfer ratio, arXiv 2605.29280) is the student's NE gain over the no-transfer student
divided by the foundation model's gain over that same student.

Suffixes: N rows, D draws (place 0 is the rows as they are), S seeds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from pipeline.evaluation.intervals import Draws, Interval, interval, resample, triple
from pipeline.evaluation.metrics import Floats, ratio

BASE, FM = "none", "fm"
# TR divides by the FM's gain: below this NE gain, or when it may be 0, the ratio says nothing.
MIN_FM_GAIN = 0.02
ARM_COLUMN = re.compile(r"p_(?P<arm>[a-z0-9_]+)_s(?P<seed>\d+)_(?P<objective>[a-z_]+)")


@dataclass(frozen=True, kw_only=True)
class ArmDraws:
    """Draws of one arm, averaged over its seeds."""

    ne_D: Floats
    auc_D: Floats
    calibration_D: Floats


def arms_of(columns: Sequence[str], objective: str) -> dict[str, list[str]]:
    """Arm -> its prediction columns, a seed each, for one objective; arms in column order."""
    found: dict[str, list[str]] = {}
    for column in columns:
        match = ARM_COLUMN.fullmatch(column)
        if match and match["objective"] == objective:
            found.setdefault(match["arm"], []).append(column)
    return found


def arm_rows(
    frame: pl.DataFrame, objective: str, *, draws: int, label: str | None = None
) -> list[dict[str, Any]]:
    """One row per arm, and one for the FM on the same rows.

    `label` is the column that stands for the label (a planted probability); by default y, whose
    immature rows are left out. Intervals are [value, low, high]; `tr` is given for arms that
    beat nothing but when the FM's gain is large and sure enough.
    """
    rows = frame.filter(pl.col(f"m_{objective}"))
    arms = arms_of(rows.columns, objective)
    fm = f"p_fm_{objective}"
    columns = [c for seeds in arms.values() for c in seeds] + ([fm] if fm in rows.columns else [])
    drawn = resample(
        rows["user_id"].to_numpy(),
        rows[label or f"y_{objective}"].to_numpy(),
        {c: rows[c].to_numpy() for c in columns},
        draws=draws,
        with_auc=label is None,
    )
    averaged = {arm: over_seeds([drawn[c] for c in seeds]) for arm, seeds in arms.items()}
    if fm in drawn:
        averaged[FM] = over_seeds([drawn[fm]])
    seeds_of = {arm: len(seeds) for arm, seeds in arms.items()}
    return [
        {"objective": objective, "arm": arm, "seeds": seeds_of.get(arm, 1), "rows": len(rows)}
        | _figures(arm, averaged, with_auc=label is None)
        for arm in averaged
    ]


def over_seeds(draws: Sequence[Draws]) -> ArmDraws:
    """Mean over seeds; each draw takes as many seeds as there are, with replacement."""
    num_draws, num_seeds = len(draws[0].ne_D), len(draws)
    chosen_DS = np.random.default_rng(0).integers(0, num_seeds, size=(num_draws, num_seeds))
    chosen_DS[0] = np.arange(num_seeds)

    def mean(name: str) -> Floats:
        values_SD = np.stack([getattr(d, name) for d in draws])
        picked: Floats = values_SD[chosen_DS, np.arange(num_draws)[:, None]].mean(axis=1)
        return picked

    return ArmDraws(ne_D=mean("ne_D"), auc_D=mean("auc_D"), calibration_D=mean("calibration_D"))


def transfer_ratio(base_D: Floats, arm_D: Floats, fm_D: Floats) -> Interval | None:
    """TR of draws of NE; None when the FM's gain is under .02 or its lower bound not above 0."""
    gain = interval(base_D - fm_D)
    if not (gain.value >= MIN_FM_GAIN and gain.low > 0):
        return None
    return interval(ratio(base_D - arm_D, base_D - fm_D))


def _figures(arm: str, averaged: Mapping[str, ArmDraws], *, with_auc: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"ne": _triple(interval(averaged[arm].ne_D))}
    if with_auc:
        found["auc"] = _triple(interval(averaged[arm].auc_D))
    found["calibration"] = _triple(interval(averaged[arm].calibration_D))
    if BASE not in averaged or arm == BASE:
        return found | {"gain": None, "tr": None}
    base_D, arm_D = averaged[BASE].ne_D, averaged[arm].ne_D
    found["gain"] = _triple(interval(base_D - arm_D))
    known = FM in averaged and arm != FM
    tr = transfer_ratio(base_D, arm_D, averaged[FM].ne_D) if known else None
    return found | {"tr": _triple(tr) if tr else None}


def _triple(found: Interval) -> list[float | None]:
    return triple(found.to_json())
