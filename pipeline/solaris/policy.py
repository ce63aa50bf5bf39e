"""Which pairs to precompute: recent finalists, within a budget, played tick by tick.

After a request its finalists may come back, so they are worth a vector. At each tick the users
with requests since the last tick offer the finalists of their last few requests; a pair's
priority is the sum over those requests of 2^-(requests ago) / log2(2 + rank). The budget of the
tick takes the best; the others are dropped and counted (arXiv 2604.12110 names the parts; the
formula is ours). Suffixes: Q requests, F finalists, P distinct pairs, U users, C pairs offered.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipeline.run.config import SolarisConfig
from pipeline.solaris.requests import Int64s, Requests

NEVER = np.iinfo(np.int64).min // 4  # before all times, far from overflow
MINUTE_US = 60_000_000
HOUR_US = 60 * MINUTE_US


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """Pairs to compute, in the order of ticks and, within one, of priority.

    Per tick, at `tick_us_T`: `budget_T` vectors allowed, `dropped_T` offers that did not fit,
    `floor_T` vectors that the user floor took.
    """

    user_N: Int64s
    ad_N: Int64s
    at_us_N: Int64s
    priority_N: npt.NDArray[np.float64]
    tick_us_T: Int64s
    budget_T: Int64s
    dropped_T: Int64s
    floor_T: Int64s


@dataclass(frozen=True, kw_only=True)
class _Offer:
    """Pairs of some users, each once, with the newest request (`recency_C`) that named it."""

    pair_C: Int64s
    user_C: Int64s
    priority_C: npt.NDArray[np.float64]
    recency_C: Int64s


@dataclass(frozen=True, kw_only=True)
class _Picks:
    pair_C: Int64s
    priority_C: npt.NDArray[np.float64]
    num_dropped: int
    num_floor: int


def choose_pairs(
    requests: Requests, config: SolarisConfig, *, begin_us: int, end_us: int
) -> Chosen:
    """Play [begin, end): at each tick compute the best offers of the requests before it.

    A tick's budget is `vectors_per_request` x the requests since the last tick (fractions are
    carried). A pair is offered again once its vector is older than `refresh_at` of the TTL. A
    user who came within the TTL and has no vector newer than half of it goes first, with the
    best pair.
    """
    tick_us = int(config.tick_minutes * MINUTE_US)
    tick_us_T = np.arange(begin_us + tick_us, end_us, tick_us, dtype=np.int64)
    until_T = np.searchsorted(requests.ts_us_Q, tick_us_T)
    allowed_T = np.floor(until_T * config.vectors_per_request).astype(np.int64)
    budget_T = np.diff(allowed_T, prepend=0)
    policy = Policy(requests, config)
    picks = [
        policy.tick(int(now_us), int(until), int(budget))
        for now_us, until, budget in zip(tick_us_T, until_T, budget_T, strict=True)
    ]
    chosen_N = np.concatenate([np.zeros(0, dtype=np.int64), *(p.pair_C for p in picks)])
    return Chosen(
        user_N=policy.users_U[policy.user_P[chosen_N]],
        ad_N=policy.ad_P[chosen_N],
        at_us_N=np.repeat(tick_us_T, [len(p.pair_C) for p in picks]),
        priority_N=np.concatenate([np.zeros(0), *(p.priority_C for p in picks)]),
        tick_us_T=tick_us_T,
        budget_T=budget_T,
        dropped_T=np.array([p.num_dropped for p in picks], dtype=np.int64),
        floor_T=np.array([p.num_floor for p in picks], dtype=np.int64),
    )


class Policy:
    """The state of the play: users' last requests, and when pairs and users got a vector."""

    def __init__(self, requests: Requests, config: SolarisConfig) -> None:
        self.users_U, self._user_Q = np.unique(requests.user_Q, return_inverse=True)
        ads_A, ad_F = np.unique(requests.ad_F, return_inverse=True)
        code_F = self._user_Q[requests.request_of_F] * len(ads_A) + ad_F
        code_P, self._pair_F = np.unique(code_F, return_inverse=True)
        self.user_P = code_P // max(len(ads_A), 1)
        self.ad_P = ads_A[code_P % max(len(ads_A), 1)]
        self._requests, self._config = requests, config
        self._request_F = requests.request_of_F
        self._ttl_us = int(config.ttl_hours * HOUR_US)
        self._previous_Q = _previous_of_user(self._user_Q)
        self._last_U = np.full(len(self.users_U), -1)
        self._pair_at_P = np.full(len(code_P), NEVER)
        self._user_at_U = np.full(len(self.users_U), NEVER)
        self._since = 0

    def tick(self, now_us: int, until: int, budget: int) -> _Picks:
        """Read requests up to index `until`, then choose at most `budget` pairs."""
        new_Q = np.arange(self._since, until)
        active_U = np.unique(self._user_Q[new_Q])
        self._last_U[self._user_Q[new_Q]] = new_Q  # of a user's requests the last one stays
        self._since = until
        starving_U = self._starving(now_us)
        offer = self._offer(np.union1d(active_U, starving_U))
        first_C = np.isin(offer.user_C, starving_U) & _best_of_user(offer)
        stale_us = now_us - int(self._config.refresh_at * self._ttl_us)
        due_C = np.isin(offer.user_C, active_U) & (self._pair_at_P[offer.pair_C] <= stale_us)
        order = np.lexsort((offer.pair_C, -offer.recency_C, -offer.priority_C, ~first_C))
        wanted = order[(first_C | due_C)[order]]
        taken = wanted[:budget]
        self._pair_at_P[offer.pair_C[taken]] = now_us
        self._user_at_U[offer.user_C[taken]] = now_us
        return _Picks(
            pair_C=offer.pair_C[taken],
            priority_C=offer.priority_C[taken],
            num_dropped=len(wanted) - len(taken),
            num_floor=int(first_C[taken].sum()),
        )

    def _starving(self, now_us: int) -> Int64s:
        """Users who came within the TTL and have no vector newer than half of it."""
        seen_U = np.flatnonzero(self._last_U >= 0)
        came_us = self._requests.ts_us_Q[self._last_U[seen_U]]
        old = self._user_at_U[seen_U] <= now_us - self._ttl_us // 2
        return seen_U[old & (came_us > now_us - self._ttl_us)]

    def _offer(self, users: Int64s) -> _Offer:
        """Finalists of the users' last `recent_requests` requests, summed by pair."""
        request = self._last_U[users]
        rows, weights = [], []
        for ago in range(self._config.recent_requests):
            request = request[request >= 0]
            row = _ranges(self._requests.first_Q, request)
            rows.append(row)
            weights.append(2.0**-ago / np.log2(2.0 + self._requests.rank_F[row]))
            request = self._previous_Q[request]
        row_C, weight_C = np.concatenate(rows), np.concatenate(weights)
        pair_C, inverse = np.unique(self._pair_F[row_C], return_inverse=True)
        recency_C = np.full(len(pair_C), -1)
        np.maximum.at(recency_C, inverse, self._request_F[row_C])
        return _Offer(
            pair_C=pair_C,
            user_C=self.user_P[pair_C],
            priority_C=np.bincount(inverse, weight_C, minlength=len(pair_C)).astype(np.float64),
            recency_C=recency_C,
        )


def _previous_of_user(user_Q: Int64s) -> Int64s:
    """Index of the same user's previous request, -1 for the first."""
    order = np.argsort(user_Q, kind="stable")
    previous_Q = np.full(len(user_Q), -1)
    same = user_Q[order[1:]] == user_Q[order[:-1]]
    previous_Q[order[1:][same]] = order[:-1][same]
    return previous_Q


def _ranges(first_Q: Int64s, request: Int64s) -> Int64s:
    """Positions of all finalists of the given requests, concatenated."""
    size = first_Q[request + 1] - first_Q[request]
    begin = np.cumsum(size) - size
    return np.arange(size.sum()) - np.repeat(begin - first_Q[request], size)


def _best_of_user(offer: _Offer) -> npt.NDArray[np.bool_]:
    order = np.lexsort((offer.pair_C, -offer.recency_C, -offer.priority_C, offer.user_C))
    user = offer.user_C[order]
    best_C = np.zeros(len(order), dtype=bool)
    best_C[order[np.append(True, user[1:] != user[:-1])[: len(order)]]] = True
    return best_C
