"""The scaling world: a click logit of five bounded parts that ask for ever more of a model.

Compute buys accuracy only where something is left to learn, so beside a drifting interest the
logit has what a user's last events say of the ad: events of its category, events of the category
that it complements, carts right after views, and a three-way part of request, user and ad. Every
part of every impression goes to the truth, so that a model is scored part by part.

Suffixes: E events, I impressions, H places in the horizon (newest first), C categories, R rank.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from pipeline.mixing.synthetic_world import (
    I64,
    LATENT_WIDTH,
    NUM_CLUSTERS,
    NUM_CONTEXTS,
    Ads,
    Draw,
    Users,
    affinity_of,
    categories_of,
    daytimes,
    stream,
    users_of,
)
from pipeline.run.planted import (
    PLANTED_SURFACES,
    SCALING_DELAY_S,
    SCALING_HORIZON,
    PlantedConfig,
)
from pipeline.run.window import DAY_US

F64 = NDArray[np.float64]

SECOND_US = 1_000_000
TERMS = ("interest", "same", "complement", "pairs", "context")
VIEW, CART = 0, 1  # places in SCALING_KINDS
KIND_SHARES = (0.60, 0.25, 0.15)
MEMORIES = 5  # an event that is this many memories old weighs below exp(-5), less than 1%
CACHED_DAYS = 64  # consecutive days read each other's events
TASTE = 1.0  # how much an event's category follows the user's interest
RANK = 3  # of the category matrix of pairs, and of the three-way part
SAME_WEIGHTS = np.array([0.4, 1.6, 0.8])  # by kind
COMPLEMENT_WEIGHTS = np.array([0.8, 1.6, 0.4])
# what a part is divided by before tanh bounds it, and the size of the bounded part in the logit
SCALES = {"interest": 1.0, "same": 2.0, "complement": 2.0, "pairs": 0.8, "context": 1.0}
GAINS = {"interest": 1.1, "same": 1.9, "complement": 2.0, "pairs": 1.1, "context": 1.2}


@dataclass(frozen=True, kw_only=True)
class Events:
    """Organic events of all users of one day in time order."""

    user_E: I64  # user slot
    id_E: I64  # user id
    ts_E: I64
    category_E: I64  # 0 ..
    kind_E: I64  # index into SCALING_KINDS


@dataclass(frozen=True, kw_only=True)
class Rows:
    """What the logit needs to know of impressions."""

    user_I: I64  # user slot
    ts_I: I64
    ad_I: I64  # ad slot
    context_I: I64


@lru_cache(maxsize=CACHED_DAYS)
def events_of(world: PlantedConfig, day: int) -> Events:
    """The events of a day (days since 1970), from (world, day) alone."""
    users = users_of(world, day, len(PLANTED_SURFACES))
    rng = stream(world.seed, Draw.ORGANIC, day)
    count = rng.poisson(world.organic_per_user_day * users.activity_U.astype(np.float64))
    user = np.repeat(np.arange(world.users), count)
    ts = day * DAY_US + np.sort(daytimes(rng, len(user)).astype(np.int64))
    user = user[rng.permutation(len(user))]
    ceiling = np.cumsum(_tastes(world, users), axis=1)[:, :-1]
    chance = rng.random(len(user))
    category = (chance[:, None] >= ceiling[user]).sum(axis=1)
    kind = np.searchsorted(np.cumsum(KIND_SHARES)[:-1], rng.random(len(user)), side="right")
    return Events(user_E=user, id_E=users.id_U[user], ts_E=ts, category_E=category, kind_E=kind)


def history_days(world: PlantedConfig) -> int:
    """Days before today whose events weigh anything."""
    return math.ceil(MEMORIES * world.memory_days)


def terms_of(world: PlantedConfig, day: int, users: Users, ads: Ads, rows: Rows) -> dict[str, F64]:
    """The bounded parts of the click logit of a day's impressions, by `TERMS`."""
    category_I = ads.category_A[rows.ad_I] - 1
    affinity_I = affinity_of(users.shared_UD[rows.user_I], ads.latent_AD, rows.ad_I)
    parts = {"interest": affinity_I.astype(np.float64)}
    parts |= _read_events(world, _history(world, day, users), day, rows, category_I)
    parts["context"] = _context(world, users.cluster_U[rows.user_I], rows.context_I, category_I)
    return {name: GAINS[name] * np.tanh(parts[name] / SCALES[name]) for name in TERMS}


def complement_of(world: PlantedConfig) -> I64:
    """pi: the category whose ads an event of each category helps, never its own."""
    rng = stream(world.seed, Draw.PARTS, 0)
    ring = rng.permutation(world.categories)
    partner = np.empty_like(ring)
    partner[ring] = np.roll(ring, 1)
    return partner


def pairs_of(world: PlantedConfig) -> F64:
    """What a cart right after a view of category c says of each ad category, [C, C] of low rank."""
    left, right = _factors(world, 1, world.categories, world.categories)
    return np.asarray((left[:, None] * right[None]).sum(axis=2) / RANK**0.5)


def _tastes(world: PlantedConfig, users: Users) -> F64:
    """Shares of the categories among each user's events, [U, C]."""
    centres = categories_of(world)
    share = np.zeros((world.users, world.categories))
    for d in range(LATENT_WIDTH):
        share += users.shared_UD[:, d, None].astype(np.float64) * centres[None, :, d]
    share = np.exp(TASTE * share)
    return share / share.sum(axis=1, keepdims=True)


def _history(world: PlantedConfig, day: int, users: Users) -> Events:
    """Events of today's users up to the end of the day, ordered by (user, time)."""
    days = [events_of(world, d) for d in range(day - history_days(world), day + 1)]
    names = ("user_E", "id_E", "ts_E", "category_E", "kind_E")
    joined = {n: np.concatenate([getattr(d, n) for d in days]) for n in names}
    # an earlier occupant of a slot was somebody else
    mine = np.flatnonzero(joined["id_E"] == users.id_U[joined["user_E"]])
    order = mine[np.argsort(joined["user_E"][mine], kind="stable")]
    return Events(**{n: joined[n][order] for n in names})


def _read_events(
    world: PlantedConfig, events: Events, day: int, rows: Rows, category_I: I64
) -> dict[str, F64]:
    """The parts that read the last `memory_events` visible events, before they are bounded.

    Sums over a longer memory are divided by how much longer it is, so that their size stays.
    """
    days, horizon = history_days(world), world.memory_events
    begin_us, span = (day - days) * DAY_US, (days + 1) * DAY_US
    key_E = events.user_E * span + (events.ts_E - begin_us)
    visible_us = np.clip(rows.ts_I - SCALING_DELAY_S * SECOND_US - begin_us, 0, None)
    end_I = np.searchsorted(key_E, rows.user_I * span + visible_us, side="left")
    first_I = np.searchsorted(key_E, rows.user_I * span, side="left")
    first_I = np.maximum(first_I, end_I - horizon)
    helps, matrix = complement_of(world), pairs_of(world)
    found = {name: np.zeros(len(end_I)) for name in ("same", "complement", "pairs")}
    for back in range(horizon):
        place = end_I - 1 - back
        some = np.flatnonzero(place >= first_I)
        at, ad = place[some], category_I[some]
        age = np.exp(-(rows.ts_I[some] - events.ts_E[at]) / (world.memory_days * DAY_US))
        category, kind = events.category_E[at], events.kind_E[at]
        found["same"][some] += age * SAME_WEIGHTS[kind] * (category == ad)
        found["complement"][some] += age * COMPLEMENT_WEIGHTS[kind] * (helps[category] == ad)
        before = np.maximum(at - 1, 0)
        paired = (at > first_I[some]) & (kind == CART) & (events.kind_E[before] == VIEW)
        found["pairs"][some] += age * paired * matrix[events.category_E[before], ad]
    return {name: total_I * (SCALING_HORIZON / horizon) for name, total_I in found.items()}


def _context(world: PlantedConfig, cluster_I: I64, context_I: I64, category_I: I64) -> F64:
    """The three-way part: unit variance over all triples of request, cluster and category."""
    sizes = (NUM_CONTEXTS, NUM_CLUSTERS, world.categories)
    a, b, c = _factors(world, 2, *sizes)
    return np.asarray((a[context_I] * b[cluster_I] * c[category_I]).sum(axis=1) / RANK**0.5)


def _factors(world: PlantedConfig, key: int, *sizes: int) -> list[F64]:
    """Random factors [size, RANK], each column of mean 0 and variance 1: no lower order is left."""
    rng = stream(world.seed, Draw.PARTS, key)
    drawn = [rng.standard_normal((size, RANK)) for size in sizes]
    return [(x - x.mean(axis=0)) / x.std(axis=0) for x in drawn]
