"""Intervals by a Poisson bootstrap over users: every draw weighs each user by Poisson(1).

A draw's NE and calibration need per-user sums alone, its AUC per-user sums between positives.
Draws are made in blocks of bounded size, and every prediction sees the same weights, so that
differences between predictions are paired.

Suffixes: D draws, U users, N rows, P positive rows, S segments between positives.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array

from pipeline.evaluation.metrics import (
    Floats,
    Rows,
    entropy,
    log_losses,
    ratio,
    rows_of,
    tie_bounds,
)

BLOCK_VALUES = 2_000_000
LEVEL = 0.95


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A metric's value on the rows as they are, and the central 95% of its draws."""

    value: float
    low: float
    high: float

    def to_json(self) -> dict[str, float | None]:
        """As JSON; what is not defined is null."""
        return {"value": number(self.value), "low": number(self.low), "high": number(self.high)}


@dataclass(frozen=True, kw_only=True)
class Draws:
    """Metrics of one prediction on each draw; place 0 is the rows as they are (weights of 1)."""

    ne_D: Floats
    calibration_D: Floats
    auc_D: Floats


def triple(found: Mapping[str, float | None]) -> list[float | None]:
    """[value, low, high] of an interval that was read from JSON (whose keys are sorted)."""
    return [found["value"], found["low"], found["high"]]


def number(value: float) -> float | None:
    """A finite number as it is, anything else as None (JSON has no NaN)."""
    return float(value) if np.isfinite(value) else None


def interval(values_D: Floats) -> Interval:
    """Value and 95% percentile interval of draws whose place 0 is the value itself."""
    known = values_D[1:][np.isfinite(values_D[1:])]
    if not np.isfinite(values_D[0]) or not len(known):
        return Interval(value=float(values_D[0]), low=float("nan"), high=float("nan"))
    low, high = np.quantile(known, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(value=float(values_D[0]), low=float(low), high=float(high))


def resample(
    users: ArrayLike,
    y: ArrayLike,
    predictions: Mapping[str, ArrayLike],
    w: ArrayLike | None = None,
    *,
    draws: int,
    seed: int = 0,
    with_auc: bool = True,
) -> dict[str, Draws]:
    """NE, calibration and AUC of every prediction on the rows and on `draws` paired draws.

    Memory is bounded whatever the number of draws. The same users and seed give the same
    weights, so results of two calls on the same rows are paired too.
    """
    tables = {name: rows_of(y, p, w) for name, p in predictions.items()}
    names_U, user_N = np.unique(np.asarray(users), return_inverse=True)
    num_users = len(names_U)
    sums = {name: _user_sums(rows, user_N, num_users) for name, rows in tables.items()}
    ranked = {n: _Ranked.of(rows, user_N, num_users) for n, rows in tables.items() if with_auc}
    height = max([num_users, 1, *(r.height for r in ranked.values())])
    parts: dict[str, list[Draws]] = {name: [] for name in tables}
    for weights_UD in _weight_blocks(num_users, max(1, BLOCK_VALUES // height), draws, seed):
        for name in tables:
            auc_D = ranked[name].auc(weights_UD) if with_auc else None
            parts[name].append(_draws(sums[name] @ weights_UD, auc_D))
    return {name: _joined(blocks) for name, blocks in parts.items()}


def _weight_blocks(num_users: int, block: int, draws: int, seed: int) -> Iterator[Floats]:
    """User weights [U, D] in blocks of draws; first one draw of ones: the rows as they are."""
    yield np.ones((num_users, 1))
    random = np.random.default_rng(seed)
    counts = _poisson_table()
    for begin in range(0, draws, block):
        size = (min(block, draws - begin), num_users)
        codes_DU = random.integers(0, len(counts), size=size, dtype=np.uint16)
        yield counts[np.ascontiguousarray(codes_DU.T)]


def _poisson_table() -> Floats:
    """Poisson(1) by inversion at 65,536 equally likely points: a draw is one look-up."""
    factorials = np.cumprod(np.concatenate([[1.0], np.arange(1.0, 12.0)]))
    below = np.cumsum(np.exp(-1.0) / factorials)
    return np.searchsorted(below, (np.arange(65_536) + 0.5) / 65_536).astype(np.float64)


def _user_sums(rows: Rows, user_N: NDArray[np.int64], num_users: int) -> Floats:
    """Sums of weight, label, prediction and loss per user [4, U]."""
    columns = (np.ones_like(rows.y_N), rows.y_N, rows.p_N, log_losses(rows.y_N, rows.p_N))
    return np.stack([np.bincount(user_N, rows.w_N * c, num_users) for c in columns])


def _draws(sums_4D: Floats, auc_D: Floats | None) -> Draws:
    weight, label, prediction, loss = sums_4D
    rate = ratio(label, weight)
    return Draws(
        ne_D=ratio(ratio(loss, weight), entropy(rate)),
        calibration_D=ratio(prediction, label),
        auc_D=np.full_like(weight, np.nan) if auc_D is None else auc_D,
    )


def _joined(blocks: list[Draws]) -> Draws:
    return Draws(
        ne_D=np.concatenate([b.ne_D for b in blocks]),
        calibration_D=np.concatenate([b.calibration_D for b in blocks]),
        auc_D=np.concatenate([b.auc_D for b in blocks]),
    )


@dataclass(frozen=True, kw_only=True)
class _Ranked:
    """Rows sorted by prediction and cut at the positives' ties.

    A draw's AUC needs the negatives' weight below each cut: one sparse product of
    (segment x user) sums with the users' weights, whatever the number of rows.
    """

    negative_SU: csr_array
    positive_P: Floats
    user_P: NDArray[np.int64]
    first_P: NDArray[np.int64]
    last_P: NDArray[np.int64]

    @staticmethod
    def of(rows: Rows, user_N: NDArray[np.int64], num_users: int) -> _Ranked:
        order = np.argsort(rows.p_N, kind="stable")
        first_N, last_N = tie_bounds(np.zeros(len(order), np.int64), rows.p_N[order])
        positive_N = (rows.w_N * rows.y_N)[order]
        negative_N = (rows.w_N * (1 - rows.y_N))[order]
        some_P = np.flatnonzero(positive_N)
        cuts = np.unique(np.concatenate([first_N[some_P], last_N[some_P]]))
        segment_N = np.searchsorted(cuts, np.arange(len(order)), side="right")
        shape = (len(cuts) + 1, num_users)
        return _Ranked(
            negative_SU=csr_array((negative_N, (segment_N, user_N[order])), shape=shape),
            positive_P=positive_N[some_P],
            user_P=user_N[order][some_P],
            first_P=np.searchsorted(cuts, first_N[some_P]),
            last_P=np.searchsorted(cuts, last_N[some_P]),
        )

    @property
    def height(self) -> int:
        """Values per draw that `auc` needs."""
        return self.negative_SU.shape[0]

    def auc(self, weights_UD: Floats) -> Floats:
        """AUC of each draw [D]."""
        below_SD = np.cumsum(self.negative_SU @ weights_UD, axis=0)
        positive_PD = weights_UD[self.user_P] * self.positive_P[:, None]
        beaten_PD = (below_SD[self.first_P] + below_SD[self.last_P]) / 2
        wins_D = (positive_PD * beaten_PD).sum(axis=0)
        return ratio(wins_D, positive_PD.sum(axis=0) * below_SD[-1])
