"""Requests of a planted world, straight from its generator: no lake, no model, no labels.

The world of size `base` (docs/planted.md) with fewer users, and with budgets that run out.
Suffixes: Q requests, F finalists, U users, A ads, N pairs, d vector width.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipeline.mixing.synthetic_day import deliver
from pipeline.mixing.synthetic_world import ads_of, users_of
from pipeline.run.planted import PLANTED_SURFACES, PlantedConfig
from pipeline.run.window import DAY_US, day_begin_us
from pipeline.solaris.requests import Int64s, Requests

REQUESTS_PER_USER_DAY = 4.0
SHOWN_PER_REQUEST = 2.0
EXHAUSTED = 0.3


@dataclass(frozen=True, kw_only=True)
class RequestWorld:
    """Requests of days up to the one that is replayed; `shown_F` tells what was shown."""

    planted: PlantedConfig
    requests: Requests
    shown_F: npt.NDArray[np.bool_]
    begin_us: int
    end_us: int

    def vectors(self, user_N: Int64s, ad_N: Int64s) -> npt.NDArray[np.int8]:
        """What stands in for a model's vectors (N, d): the latents of user and ad, int8 codes."""
        day = self.begin_us // DAY_US
        users = users_of(self.planted, day, len(PLANTED_SURFACES)).shared_UD
        ads = ads_of(self.planted, day).latent_AD
        user_Nd = users[(user_N - 1) % self.planted.users]
        ad_Nd = ads[(ad_N - 1) % self.planted.ads]
        codes = np.concatenate([user_Nd, ad_Nd], axis=1) * 40.0
        return np.clip(np.round(codes), -127, 127).astype(np.int8)


def planted_requests(*, users: int, days: int, last_day: str, seed: int = 0) -> RequestWorld:
    """Play `days` days up to `last_day`: 4 requests a user-day, 30% of the budgets run out."""
    world = PlantedConfig(
        seed=seed,
        users=users,
        ads=5_000,
        categories=32,
        activity_sd=1.2,
        rows_per_day=int(users * REQUESTS_PER_USER_DAY * SHOWN_PER_REQUEST),
        exhausted=EXHAUSTED,
    )
    last = day_begin_us(last_day) // DAY_US
    parts = [_requests_of(world, day) for day in range(last - days + 1, last + 1)]
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    user_Q, ts_us_Q, surface_Q, size_Q, ad_F, score_F, shown_F = columns
    first_Q = np.concatenate([[0], np.cumsum(size_Q)]).astype(np.int64)
    requests = Requests(
        request_Q=np.arange(len(size_Q), dtype=np.int64),
        user_Q=user_Q,
        ts_us_Q=ts_us_Q,
        surface_Q=surface_Q,
        first_Q=first_Q,
        ad_F=ad_F,
        rank_F=np.arange(len(ad_F)) - np.repeat(first_Q[:-1], size_Q),
        score_F=score_F,
    )
    return RequestWorld(
        planted=world,
        requests=requests,
        shown_F=shown_F,
        begin_us=last * DAY_US,
        end_us=(last + 1) * DAY_US,
    )


def _requests_of(world: PlantedConfig, day: int) -> tuple[np.ndarray, ...]:
    """User, time, surface and size of each request; ad, score and shown of each finalist."""
    played = deliver(world, day, len(PLANTED_SURFACES))
    requests = played.requests
    there_RF = requests.ads_RF >= 0
    kept_R = there_RF.any(axis=1)
    place_F = np.arange(there_RF.shape[1])
    gap_RF = requests.score_RF - requests.score_RF[:, :1]
    return (
        played.users.id_U[requests.user_R[kept_R]],
        requests.ts_R[kept_R],
        np.array(PLANTED_SURFACES, dtype=object)[requests.surface_R[kept_R]],
        there_RF.sum(axis=1)[kept_R],
        played.ads.id_A[requests.ads_RF[there_RF]],
        gap_RF[there_RF],
        (place_F < requests.shown_R[:, None])[there_RF],
    )
