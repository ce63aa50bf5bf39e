"""Metrics of predicted probabilities, vectorised over rows, each with optional row weights.

Labels may be soft: `y` in [0, 1]. With the planted probability in the place of the label, a log
loss or NE is measured against the truth, free of label noise. A metric that is not defined on
the given rows (no rows, one class, no positives) is NaN, never an error; probabilities outside
[0, 1] and labels outside [0, 1] are a `DataError`.

Suffixes: N rows, G groups.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pipeline.run.errors import DataError

Floats = NDArray[np.float64]
# Predictions of exactly 0 or 1 are moved in by this much, so that one wrong row costs 16 nats.
EPSILON = 1e-7


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Checked labels, predictions and weights of N rows."""

    y_N: Floats
    p_N: Floats
    w_N: Floats

    @property
    def weight(self) -> float:
        """Total weight."""
        return float(self.w_N.sum())


def rows_of(y: ArrayLike, p: ArrayLike, w: ArrayLike | None = None) -> Rows:
    """Labels, predictions and weights as checked float64 arrays of one length."""
    y_N, p_N = np.asarray(y, np.float64), np.asarray(p, np.float64)
    w_N = np.ones_like(y_N) if w is None else np.asarray(w, np.float64)
    if not y_N.ndim == p_N.ndim == w_N.ndim == 1 or not len(y_N) == len(p_N) == len(w_N):
        raise DataError(
            f"labels, predictions and weights must be vectors of one length, got shapes "
            f"{y_N.shape}, {p_N.shape}, {w_N.shape}; pass one value per row"
        )
    for name, values in (("label", y_N), ("prediction", p_N)):
        _need(name, values, (values >= 0) & (values <= 1), "in [0, 1]")
    _need("weight", w_N, (w_N >= 0) & np.isfinite(w_N), "finite and at least 0")
    return Rows(y_N=y_N, p_N=p_N, w_N=w_N)


def log_losses(y_N: Floats, p_N: Floats) -> Floats:
    """Cross entropy of each row in nats; p is clipped to [1e-7, 1 - 1e-7]."""
    clipped_N = np.clip(p_N, EPSILON, 1 - EPSILON)
    losses: Floats = -(y_N * np.log(clipped_N) + (1 - y_N) * np.log1p(-clipped_N))
    return losses


def entropy(rate: ArrayLike) -> Floats:
    """Entropy of a coin with P(1) = rate, in nats; 0 at rates of 0 and 1."""
    r = np.asarray(rate, np.float64)
    inner = np.where((r > 0) & (r < 1), r, 0.5)
    bits: Floats = -(inner * np.log(inner) + (1 - inner) * np.log1p(-inner))
    return np.where((r > 0) & (r < 1), bits, np.where(np.isnan(r), np.nan, 0.0))


def ratio(numerator: ArrayLike, denominator: ArrayLike) -> Floats:
    """numerator / denominator; NaN where the denominator is 0."""
    below = np.asarray(denominator, np.float64)
    top = np.asarray(numerator, np.float64)
    quotient: Floats = np.where(below == 0, np.nan, top / np.where(below == 0, 1.0, below))
    return quotient


def log_loss(y: ArrayLike, p: ArrayLike, w: ArrayLike | None = None) -> float:
    """Mean cross entropy in nats."""
    rows = rows_of(y, p, w)
    return float(ratio((rows.w_N * log_losses(rows.y_N, rows.p_N)).sum(), rows.weight))


def normalized_entropy(y: ArrayLike, p: ArrayLike, w: ArrayLike | None = None) -> float:
    """NE: log loss over the entropy of the base rate; 1 is the constant predictor, lower is better.

    The base rate is that of the given rows. NaN when all labels are the same.
    """
    rows = rows_of(y, p, w)
    rate = ratio((rows.w_N * rows.y_N).sum(), rows.weight)
    return float(ratio(log_loss(y, p, w), entropy(rate)))


def ne_gain_pct(base: float, new: float) -> float:
    """Relative NE gain in percent, 100 (base - new) / base; above 0 when `new` is better."""
    return float(100 * ratio(base - new, base))


def relative_cross_entropy(y: ArrayLike, p: ArrayLike, w: ArrayLike | None = None) -> float:
    """RCE: percent of the base rate's cross entropy that the predictions remove, 100 (1 - NE)."""
    return 100 * (1 - normalized_entropy(y, p, w))


def closed_fraction(ne: float, bayes_ne: float) -> float:
    """How much of the way from the constant predictor to Bayes is gone: (1 - NE) / (1 - Bayes)."""
    return float(ratio(1 - ne, 1 - bayes_ne))


def calibration(y: ArrayLike, p: ArrayLike, w: ArrayLike | None = None) -> float:
    """Sum of predictions over sum of labels; 1 is calibrated, NaN without positives."""
    rows = rows_of(y, p, w)
    return float(ratio((rows.w_N * rows.p_N).sum(), (rows.w_N * rows.y_N).sum()))


def auc(y: ArrayLike, p: ArrayLike, w: ArrayLike | None = None) -> float:
    """Area under the ROC curve; ties count one half, NaN when there is one class."""
    rows = rows_of(y, p, w)
    zeros_N = np.zeros(len(rows.y_N), np.int64)
    return float(_group_auc(rows, zeros_N, 1)[0]) if len(rows.y_N) else float("nan")


def gauc(y: ArrayLike, p: ArrayLike, users: ArrayLike, w: ArrayLike | None = None) -> float:
    """Mean AUC within users, weighted by their rows' weight; users of one class are dropped."""
    rows = rows_of(y, p, w)
    if not len(rows.y_N):
        return float("nan")
    names, codes_N = np.unique(np.asarray(users), return_inverse=True)
    auc_G = _group_auc(rows, codes_N, len(names))
    weight_G = np.bincount(codes_N, rows.w_N, len(names))
    known_G = ~np.isnan(auc_G)
    return float(ratio((weight_G * auc_G)[known_G].sum(), weight_G[known_G].sum()))


def calibration_curve(
    y: ArrayLike, p: ArrayLike, w: ArrayLike | None = None, *, bins: int = 20
) -> tuple[Floats, Floats, Floats]:
    """Mean prediction, mean label and weight of up to `bins` bins of equal rows by prediction."""
    rows = rows_of(y, p, w)
    if not len(rows.p_N):
        empty = np.zeros(0)
        return empty, empty, empty
    edges = np.unique(np.quantile(rows.p_N, np.arange(1, bins) / bins))
    bin_N = np.searchsorted(edges, rows.p_N, side="right")
    sums = [
        np.bincount(bin_N, values, bins).astype(np.float64)
        for values in (rows.w_N, rows.w_N * rows.p_N, rows.w_N * rows.y_N)
    ]
    weight, predicted, seen = (s[sums[0] > 0] for s in sums)
    return predicted / weight, seen / weight, weight


def expected_calibration_error(
    y: ArrayLike, p: ArrayLike, w: ArrayLike | None = None, *, bins: int = 20
) -> float:
    """ECE: mean over rows of |mean prediction - mean label| of the row's bin (equal-row bins)."""
    predicted, seen, weight = calibration_curve(y, p, w, bins=bins)
    return float(ratio((weight * np.abs(predicted - seen)).sum(), weight.sum()))


def _group_auc(rows: Rows, group_N: NDArray[np.int64], num_groups: int) -> Floats:
    order = np.lexsort((rows.p_N, group_N))
    group_N, p_N = group_N[order], rows.p_N[order]
    positive_N = (rows.w_N * rows.y_N)[order]
    negative_N = (rows.w_N * (1 - rows.y_N))[order]
    first_N, last_N = tie_bounds(group_N, p_N)
    below_N = np.concatenate([[0.0], np.cumsum(negative_N)])
    base_N = below_N[np.searchsorted(group_N, group_N)]
    wins_N = positive_N * ((below_N[first_N] + below_N[last_N]) / 2 - base_N)
    sums = [np.bincount(group_N, v, num_groups) for v in (wins_N, positive_N, negative_N)]
    return ratio(sums[0], sums[1] * sums[2])


def tie_bounds(
    group_N: NDArray[np.int64], p_N: Floats
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Of sorted rows: first place and place after the last of each row's (group, p) tie."""
    if not len(p_N):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    new_N = np.concatenate([[True], (np.diff(group_N) != 0) | (np.diff(p_N) != 0)])
    starts = np.flatnonzero(new_N)
    ends = np.concatenate([starts[1:], [len(p_N)]]).astype(np.int64)
    tie_N = np.cumsum(new_N) - 1
    return starts[tie_N], ends[tie_N]


def _need(name: str, values: Floats, good: NDArray[np.bool_], rule: str) -> None:
    if not good.all():
        row = int(np.flatnonzero(~good)[0])
        raise DataError(
            f"{name} must be {rule}, got {values[row]} at row {row} "
            f"({int((~good).sum())} such rows); check what made the scores"
        )
