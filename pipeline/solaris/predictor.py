"""The chance that a pair is asked for within a vector's life, and how often it then is.

A logistic regression gives the chance, a linear one of the logarithm how often; their product,
the asks that a vector is expected to answer, is the pair's priority (arXiv 2604.12110 names
prediction and priority; both models are ours). They are fitted on offers of the past whose whole
life has passed. Suffixes: M offers of the past, C pairs offered, K features, W weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from pipeline.solaris.signals import Floats

RIDGE: Final = 1e-3  # x the number of rows, on standardized features
NEWTON_STEPS: Final = 25
FEWEST_OFFERS: Final = 500  # on fewer nothing is fitted
DIGITS: Final = 6  # of the weights: no order of summation reaches them


@dataclass(frozen=True, kw_only=True)
class AskModel:
    """Weights on standardized features and a constant, of the chance and of the logarithm."""

    mean_K: Floats
    scale_K: Floats
    chance_W: Floats
    times_W: Floats

    def chance(self, x_CK: Floats) -> Floats:
        """Probability that each pair is asked for within a vector's life."""
        return _sigmoid(_product(self._design(x_CK), self.chance_W))

    def asks(self, x_CK: Floats) -> Floats:
        """How many asks each pair's vector is expected to answer: chance x times."""
        design_CW = self._design(x_CK)
        times_C = np.exp(_product(design_CW, self.times_W))
        return np.asarray(_sigmoid(_product(design_CW, self.chance_W)) * times_C)

    def _design(self, x_CK: Floats) -> Floats:
        return _with_one((x_CK - self.mean_K) / self.scale_K)


def fit(x_MK: Floats, asks_M: np.ndarray) -> AskModel | None:
    """Fit both on features and on how often each pair was asked; None when that says too little."""
    asked_M = asks_M > 0
    if len(asks_M) < FEWEST_OFFERS or asked_M.all() or not asked_M.any():
        return None
    mean_K, scale_K = x_MK.mean(axis=0), np.maximum(x_MK.std(axis=0), 1e-6)
    design_MW = _with_one((x_MK - mean_K) / scale_K)
    times_W = _least_squares(design_MW[asked_M], np.log(asks_M[asked_M]))
    return AskModel(
        mean_K=np.round(mean_K, DIGITS),
        scale_K=np.round(scale_K, DIGITS),
        chance_W=np.round(_logistic(design_MW, asked_M.astype(np.float64)), DIGITS),
        times_W=np.round(times_W, DIGITS),
    )


def _logistic(design_MW: Floats, label_M: Floats) -> Floats:
    """Newton's method on the ridge-penalized log loss; the constant is not penalized."""
    ridge_W = _ridge(design_MW)
    weights_W = np.zeros(design_MW.shape[1])
    for _ in range(NEWTON_STEPS):
        chance_M = _sigmoid(design_MW @ weights_W)
        slope_W = design_MW.T @ (chance_M - label_M) + ridge_W * weights_W
        curvature_M = chance_M * (1.0 - chance_M)
        hessian_WW = design_MW.T @ (design_MW * curvature_M[:, None]) + np.diag(ridge_W)
        step_W = np.linalg.solve(hessian_WW, slope_W)
        weights_W = weights_W - step_W
        if np.abs(step_W).max() < 1e-10:
            break
    return np.asarray(weights_W)


def _least_squares(design_MW: Floats, target_M: Floats) -> Floats:
    gram_WW = design_MW.T @ design_MW + np.diag(_ridge(design_MW))
    return np.asarray(np.linalg.solve(gram_WW, design_MW.T @ target_M))


def _ridge(design_MW: Floats) -> Floats:
    ridge_W = np.full(design_MW.shape[1], RIDGE * len(design_MW))
    ridge_W[-1] = 1e-9
    return ridge_W


def _product(design_CW: Floats, weights_W: Floats) -> Floats:
    """Inner products, one feature after the other: no BLAS, so the same bits for any batch."""
    total_C = np.zeros(len(design_CW))
    for w, weight in enumerate(weights_W):
        total_C += design_CW[:, w] * weight
    return total_C


def _with_one(x_CK: Floats) -> Floats:
    return np.concatenate([x_CK, np.ones((len(x_CK), 1))], axis=1)


def _sigmoid(x: Floats) -> Floats:
    return np.asarray(1.0 / (1.0 + np.exp(-np.clip(x, -40.0, 40.0))))
