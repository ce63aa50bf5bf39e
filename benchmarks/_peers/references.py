"""What a model has to beat: counts that anybody would try first, taken from the earlier rows alone.

Suffixes: N rows, C counts, E scored rows.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from pipeline.mixing.loader import Loader
from pipeline.run.paths import Run, open_run

USER_ROWS, AD_ROWS = 10.0, 5.0  # earlier rows at which a bias counts for half of what they say
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class _Bias:
    """Shrunken mean errors by key."""

    def __init__(self, shrink: float) -> None:
        self._shrink = shrink
        self._sum: dict[int, float] = defaultdict(float)
        self._count: dict[int, int] = defaultdict(int)

    def of(self, key: int) -> float:
        return self._sum[key] / (self._count[key] + self._shrink)

    def learn(self, key: int, error: float) -> None:
        self._sum[key] += error
        self._count[key] += 1


def running_bias(user_N: Ints, ad_N: Ints, ts_us_N: Ints, y_N: Floats, *, delay_s: float) -> Floats:
    """Scores in [0, 1]: the mean so far plus biases of the ad and of the user on top of the ad.

    Rows are in time order; each is scored from those that happened more than `delay_s` before it,
    held-out ones among them.
    """
    users, ads = _Bias(USER_ROWS), _Bias(AD_ROWS)
    user, ad, ts, y = (a.tolist() for a in (user_N, ad_N, ts_us_N, y_N))
    total, known, delay_us = 0.5, 0, int(delay_s * 1_000_000)
    scores = []
    for row in range(len(y)):
        while known < row and ts[known] + delay_us < ts[row]:
            error = y[known] - total / (known + 1)
            users.learn(user[known], error - ads.of(ad[known]))
            ads.learn(ad[known], error)
            total, known = total + y[known], known + 1
        scores.append(total / (known + 1) + ads.of(ad[row]) + users.of(user[row]))
    return np.clip(np.array(scores), 0, 1)


def repeat_logistic(seen_NC: Floats, y_N: Floats, scored_EC: Floats) -> Floats:
    """Probabilities of a logistic regression on counts of earlier events."""
    model = LogisticRegression().fit(seen_NC, y_N)
    found: Floats = model.predict_proba(scored_EC)[:, 1]
    return found


def movielens(run: str, answer: str) -> None:
    """Write the running bias of a MovieLens run's holdout."""
    opened = open_run(run)
    train, holdout = (_columns(opened, s) for s in ("train", "holdout"))
    both = [
        np.concatenate([train[n], holdout[n]]) for n in ("user_id", "ad_id", "ts_us", "y_click")
    ]
    order_N = np.argsort(both[2], kind="stable")
    scores_N = np.empty(len(order_N))
    user_N, ad_N, ts_us_N, y_N = (column[order_N] for column in both)
    scores_N[order_N] = running_bias(user_N, ad_N, ts_us_N, y_N.astype(np.float64), delay_s=0)
    np.save(answer, scores_N[len(train["ts_us"]) :])


def tafeng(run: str, answer: str) -> None:
    """Write a logistic regression's probabilities of a Ta Feng run's holdout, on its counts alone.

    They say how often the customer met the product and its category, and how often bought them.
    """
    opened = open_run(run)
    train, holdout = (_loaded(opened, s) for s in ("train", "holdout"))
    seen_NC, scored_EC = (_counts(loader) for loader in (train, holdout))
    y_N = train.columns["y_click"].astype(np.float64)
    np.save(answer, repeat_logistic(seen_NC, y_N, scored_EC))


def _counts(loader: Loader) -> Floats:
    """log(1 + count) of every match count, [N, C]."""
    features = loader.features
    names = [column for match in features.matches for column in match.columns]
    places = [features.dense_columns.index(name) for name in names]
    counts_NC: Floats = loader.rows(0, loader.num_rows).dense_BC.numpy()[:, places].astype(float)
    return counts_NC


def _loaded(run: Run, selection: Literal["train", "holdout"]) -> Loader:
    order: Literal["time", "none"] = "time" if selection == "train" else "none"
    return Loader(run, selection, batch_size=4_096, events=False, order=order)


def _columns(run: Run, selection: Literal["train", "holdout"]) -> dict[str, np.ndarray]:
    return _loaded(run, selection).columns
