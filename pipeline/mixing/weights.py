"""What makes a sampled mix speak for all rows: loss weights or logit shifts, and the balance."""

from __future__ import annotations

from collections import Counter
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from model.config import Objective
from pipeline.run.errors import ConfigError

Floats = NDArray[np.float64]
Correction = Literal["weight", "shift", "none"]


def correct(how: Correction, *, rate: Floats, odds: Floats) -> tuple[Floats, Floats]:
    """Loss weight and logit shift of rows that were kept at `rate`.

    "weight": a kept row stands for 1/rate of them, so that weighted counts are those of all rows.
    "shift": `odds` is the rate of a row's negatives over that of its positives; sampling divides
    the odds by it, so the loss sees the logit plus -ln odds, on positives and negatives alike,
    while the model learns the true odds.
    """
    ones, zeros = np.ones(len(rate)), np.zeros(len(rate))
    if how == "weight":
        return 1.0 / np.maximum(rate, 1e-12), zeros
    if how == "shift":
        return ones, -np.log(np.maximum(odds, 1e-12))
    return ones, zeros


def check_correction(how: Correction, objectives: tuple[Objective, ...]) -> None:
    """`ConfigError` when a shift cannot be right: rows with several labels.

    Such a row is kept for any positive label, so that a negative of one objective is not kept
    at one rate.
    """
    shared = [w for w, n in Counter(o.window_hours for o in objectives).items() if n > 1]
    if how == "shift" and shared:
        raise ConfigError(
            f"mix.correction must be weight where objectives share a window ({shared[0]} hours), "
            "got 'shift'; a row with several labels is not sampled at one rate for each"
        )


def balance_factors(positives: NDArray[np.int64], beta: float) -> Floats:
    """Weight of a surface's labels by effective counts (arXiv 1901.05555), 1 on average.

    n labels count for (1 - beta^n) / (1 - beta): for all of them when beta is near 1, for one when
    it is 0. A surface weighs as its effective count per label, so that 0 changes nothing and a beta
    near 1 gives surfaces equal weight. Averages are over the positives; empty surfaces have 1.
    """
    some = positives > 0
    if beta == 0 or not some.any():
        return np.ones(len(positives))
    effective = np.where(some, (1 - beta ** positives.astype(np.float64)) / (1 - beta), 1.0)
    factor = np.where(some, 1.0 / effective, 0.0)
    factor *= positives.sum() / (factor * positives).sum()
    return np.where(some, factor, 1.0)
