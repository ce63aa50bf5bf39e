"""Which pairs to precompute: the best offers within a budget, played tick by tick.

After a request its finalists may come back, so they are worth a vector. At each tick the users
with requests since the last tick offer the finalists of their last few requests, and a ranking
says which matter most. The budget of the tick, in forward passes of the foundation model, takes
the best; the others are dropped and counted (the parts follow arXiv 2604.12110).
Suffixes: Q requests, P distinct pairs, U users, C pairs offered, T ticks, N pairs chosen.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipeline.run.config import SolarisConfig
from pipeline.run.window import HOUR_US
from pipeline.solaris.offers import NOBODY, Codes, Offer, Offers
from pipeline.solaris.rankings import MINUTE_US, Ranking
from pipeline.solaris.requests import Int64s, Requests
from pipeline.solaris.signals import Floats

NEVER = np.iinfo(np.int64).min // 4  # before all times, far from overflow


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """Pairs to compute, in the order of ticks and, within one, of priority.

    Per tick, at `tick_us_T`: `budget_T` vectors allowed, `dropped_T` offers that did not fit,
    `floor_T` vectors that the user floor took.
    """

    user_N: Int64s
    ad_N: Int64s
    at_us_N: Int64s
    priority_N: Floats
    tick_us_T: Int64s
    budget_T: Int64s
    dropped_T: Int64s
    floor_T: Int64s


@dataclass(frozen=True, kw_only=True)
class _Picks:
    pair_C: Int64s
    priority_C: Floats
    num_dropped: int
    num_floor: int


def choose_pairs(
    requests: Requests,
    codes: Codes,
    ranking: Ranking,
    config: SolarisConfig,
    *,
    begin_us: int,
    end_us: int,
) -> Chosen:
    """Play [begin, end): at each tick compute the best offers of the requests before it.

    Requests before `begin` only teach the ranking. A tick's budget is `vectors_per_request` x the
    requests since the last tick (fractions are carried). A pair is offered again once its vector is
    older than `refresh_at` of the TTL. With `user_floor` a user who came within the TTL and has no
    vector newer than half of it goes first, with the best pair.
    """
    tick_us = int(config.tick_minutes * MINUTE_US)
    tick_us_T = np.arange(begin_us + tick_us, end_us, tick_us, dtype=np.int64)
    first = int(np.searchsorted(requests.ts_us_Q, begin_us))
    until_T = np.searchsorted(requests.ts_us_Q, tick_us_T)
    allowed_T = np.floor((until_T - first) * config.vectors_per_request).astype(np.int64)
    budget_T = np.diff(allowed_T, prepend=0)
    policy = Policy(requests, codes, config, first)
    picks = []
    for now_us, until, budget in zip(
        tick_us_T.tolist(), until_T.tolist(), budget_T.tolist(), strict=True
    ):
        ranking.advance(until, now_us)
        picks.append(policy.tick(ranking, now_us, until, budget))
    chosen_N = np.concatenate([np.zeros(0, dtype=np.int64), *(p.pair_C for p in picks)])
    return Chosen(
        user_N=codes.users_U[codes.user_P[chosen_N]],
        ad_N=codes.ads_A[codes.ad_P[chosen_N]],
        at_us_N=np.repeat(tick_us_T, [len(p.pair_C) for p in picks]),
        priority_N=np.concatenate([np.zeros(0), *(p.priority_C for p in picks)]),
        tick_us_T=tick_us_T,
        budget_T=budget_T,
        dropped_T=np.array([p.num_dropped for p in picks], dtype=np.int64),
        floor_T=np.array([p.num_floor for p in picks], dtype=np.int64),
    )


class Policy:
    """The state of the play: users' last requests, and when pairs and users got a vector."""

    def __init__(self, requests: Requests, codes: Codes, config: SolarisConfig, first: int) -> None:
        self._ts_us_Q, self._config = requests.ts_us_Q, config
        self._offers = Offers(requests, codes, config.recent_requests)
        self._ttl_us = int(config.ttl_hours * HOUR_US)
        self._pair_at_P = np.full(len(codes.user_P), NEVER)
        self._user_at_U = np.full(len(codes.users_U), NEVER)
        self._since = first

    def tick(self, ranking: Ranking, now_us: int, until: int, budget: int) -> _Picks:
        """Read requests up to index `until`, then choose at most `budget` pairs."""
        active_U = self._offers.read(self._since, until)
        self._since = until
        starving_U = self._starving(now_us)[: None if self._config.user_floor else 0]
        offer = self._offers.of(np.union1d(active_U, starving_U))
        priority_C = ranking.priorities(offer, now_us)
        first_C = np.isin(offer.user_C, starving_U) & _best_of_user(offer, priority_C)
        stale_us = now_us - int(self._config.refresh_at * self._ttl_us)
        due_C = np.isin(offer.user_C, active_U) & (self._pair_at_P[offer.pair_C] <= stale_us)
        order = np.lexsort((offer.pair_C, -offer.recency_C, -priority_C, ~first_C))
        wanted = order[(first_C | due_C)[order]]
        taken = wanted[:budget]
        self._pair_at_P[offer.pair_C[taken]] = now_us
        self._user_at_U[offer.user_C[taken]] = now_us
        return _Picks(
            pair_C=offer.pair_C[taken],
            priority_C=priority_C[taken],
            num_dropped=len(wanted) - len(taken),
            num_floor=int(first_C[taken].sum()),
        )

    def _starving(self, now_us: int) -> Int64s:
        """Users who came within the TTL and have no vector newer than half of it."""
        last_U = self._offers.last_U
        seen_U = np.flatnonzero(last_U != NOBODY)
        came_us = self._ts_us_Q[last_U[seen_U]]
        old = self._user_at_U[seen_U] <= now_us - self._ttl_us // 2
        return seen_U[old & (came_us > now_us - self._ttl_us)]


def _best_of_user(offer: Offer, priority_C: Floats) -> npt.NDArray[np.bool_]:
    order = np.lexsort((offer.pair_C, -offer.recency_C, -priority_C, offer.user_C))
    user = offer.user_C[order]
    best_C = np.zeros(len(order), dtype=bool)
    best_C[order[np.append(True, user[1:] != user[:-1])[: len(order)]]] = True
    return best_C
