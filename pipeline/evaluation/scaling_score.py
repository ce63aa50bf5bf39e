"""Scores of one model of the ladder: NE against truth and labels, and what of each part it knows.

Suffixes: N rows, T terms of the click logit, U blocks of users.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pipeline.evaluation.metrics import Floats, log_losses, normalized_entropy, rows_of
from pipeline.mixing.hashing import bucket_of

BLOCKS = 100  # of users: what the bootstrap draws
DIGITS = 7


def score_of(
    *,
    y: ArrayLike,
    true: ArrayLike,
    logit: ArrayLike,
    users: NDArray[np.int64],
    terms: Mapping[str, Floats],
) -> dict[str, Any]:
    """NE (and Bayes NE), part scores, and the sums per block of users that an NE needs."""
    logit_N, true_N = np.asarray(logit, np.float64), np.asarray(true, np.float64)
    p_N = 1.0 / (1.0 + np.exp(-logit_N))
    return {
        "ne": {
            "truth": _short(normalized_entropy(true_N, p_N)),
            "labels": _short(normalized_entropy(y, p_N)),
            "bayes": _short(normalized_entropy(true_N, true_N)),
        },
        "parts": parts_of(logit_N, terms),
        "blocks": {
            "truth": _sums(true_N, p_N, users),
            "labels": _sums(y, p_N, users),
        },
    }


def parts_of(logit_N: Floats, terms: Mapping[str, Floats]) -> dict[str, dict[str, float]]:
    """Per term how much of it the logit knows.

    `explained`: the logit's slope on the term, all terms together by least squares. For the
    conditional mean of what a model knows that is the share of the term's variance that it
    explains: 0 nothing, 1 all. `r2`: squared partial correlation, which noise in the logit lowers.
    """
    names = list(terms)
    design_NT = np.stack([terms[n] - np.mean(terms[n]) for n in names], axis=1)
    centred_N = logit_N - logit_N.mean()
    slope_T = np.linalg.lstsq(design_NT, centred_N, rcond=None)[0]
    error = float(np.sum((centred_N - design_NT @ slope_T) ** 2))
    precision_T = 1.0 / np.diag(np.linalg.pinv(design_NT.T @ design_NT))
    own_T = slope_T**2 * precision_T  # what the term alone adds to the explained sum of squares
    return {
        name: {"explained": _short(slope), "r2": _short(own / max(own + error, 1e-300))}
        for name, slope, own in zip(names, slope_T.tolist(), own_T.tolist(), strict=True)
    }


def _sums(y: ArrayLike, p_N: Floats, users: NDArray[np.int64]) -> list[list[float]]:
    """Rows, labels and losses of every block of users, [3, U]."""
    rows, block_N = rows_of(y, p_N), bucket_of(users, BLOCKS)
    columns = (np.ones_like(rows.y_N), rows.y_N, log_losses(rows.y_N, rows.p_N))
    return [[_short(v) for v in np.bincount(block_N, c, BLOCKS).tolist()] for c in columns]


def _short(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
