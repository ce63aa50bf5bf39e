"""From predictions to metrics, intervals and figures: one code for every contestant.

Suffixes: N rows, D draws.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from benchmarks._measure import BenchmarkError
from benchmarks._peers.contestants import OURS
from pipeline.evaluation.intervals import Interval, interval, resample
from pipeline.evaluation.metrics import Floats, auc, gauc, normalized_entropy

DRAWS = 300


@dataclass(frozen=True, kw_only=True)
class Holdout:
    """What is scored: labels (planted sets: also the probability behind each) and users."""

    y_N: Floats
    judged_N: Floats
    user_N: np.ndarray

    @staticmethod
    def read(data: str) -> Holdout:
        """The holdout of an exported set."""
        frame = pl.read_parquet(Path(data) / "holdout.parquet")
        true = "true_click" if "true_click" in frame.columns else "y_click"
        return Holdout(
            y_N=frame["y_click"].cast(pl.Float64).to_numpy(),
            judged_N=frame[true].cast(pl.Float64).to_numpy(),
            user_N=frame["user_id"].to_numpy(),
        )


@dataclass(frozen=True, kw_only=True)
class Score:
    """A contestant's metrics, means over seeds; `auc_D` the mean AUC of each draw of users."""

    auc: Interval
    gauc: float
    ne: float
    auc_D: Floats


def score(holdout: Holdout, predictions: Sequence[Floats]) -> Score:
    """Metrics of one contestant's predictions of every seed.

    AUC and NE are taken against the planted probability where there is one, which is free of label
    noise. The draws of users are the same for all contestants, so that differences are paired.
    """
    for p_N in predictions:
        if len(p_N) != len(holdout.y_N):
            raise BenchmarkError(
                f"{len(p_N)} predictions for {len(holdout.y_N)} held-out rows; "
                "remove the cache folder's results and run again"
            )
    clipped = [np.clip(p_N, 0.0, 1.0) for p_N in predictions]
    named = {str(seed): p_N for seed, p_N in enumerate(clipped)}
    drawn = resample(holdout.user_N, holdout.judged_N, named, draws=DRAWS)
    auc_D = np.mean([d.auc_D for d in drawn.values()], axis=0)
    return Score(
        auc=interval(auc_D),
        gauc=float(np.mean([gauc(holdout.y_N, p_N, holdout.user_N) for p_N in clipped])),
        ne=float(np.mean([normalized_entropy(holdout.judged_N, p_N) for p_N in clipped])),
        auc_D=auc_D,
    )


def gap(ours: Score, other: Score) -> Interval:
    """Our AUC minus another's, with the interval over users."""
    return interval(ours.auc_D - other.auc_D)


def best_peer(scores: Mapping[str, Score]) -> str:
    """The peer with the highest AUC."""
    return max((name for name in scores if name != OURS), key=lambda n: scores[n].auc.value)


def quick_auc(y_N: Floats, p_N: Floats) -> float:
    """AUC of one prediction."""
    return auc(y_N, np.clip(p_N, 0.0, 1.0))
