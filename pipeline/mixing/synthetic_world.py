"""The planted world: who the users and ads are on a given day (docs/planted.md has the formulas).

Everything is drawn from (seed, purpose, absolute day or block), so that any day can be made
alone and comes out the same. Suffixes: U user slots, A ad slots, S surfaces, D latent width.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from pipeline.mixing.prefetch import prefetched
from pipeline.run.planted import PlantedConfig
from pipeline.run.window import DAY_US, HOUR_US

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]

LATENT_WIDTH = 4
DRIFT = 0.97  # correlation of a user's interest with the day before
MEMORY_DAYS = 128  # what is older weighs below .97^128 = 2%
SHARED = 0.8  # part of the interest's variance that all surfaces share
RENEWING = 0.3  # part of the slots whose user or ad is replaced ...
LIFE_DAYS = 30  # ... every so many days: 1% of the slots a day, 10% in ten days
USER_BIAS_SD = 0.25
AD_QUALITY_SD = 0.3
CATEGORY_WEIGHT = 0.95
NUM_CLUSTERS = 32
CLUSTER_NOISE = 1.0
INTEREST_NOISE = 0.5
PURCHASE_NOISE = 1.0
NUM_CONTEXTS = 16
CONTEXT_SD = 0.25


class Draw(IntEnum):
    """What a random stream is for; it enters the seed, so that streams never overlap."""

    USER = 1
    USER_LIFE = 2
    INTEREST_BASE = 3
    INTEREST_STEP = 4
    AD = 5
    AD_LIFE = 6
    CATEGORY = 7
    USER_FEATURES = 8
    CLUSTER = 9
    REQUESTS = 10
    POOL = 11
    FINALISTS = 12
    LABELS = 13
    ORGANIC = 14
    CONTEXT = 15
    VALUE = 16
    PARTS = 17
    BUDGET = 18


def stream(seed: int, draw: Draw, *key: int) -> np.random.Generator:
    """The random stream of a purpose and a key (days, blocks, generations: not negative)."""
    return np.random.Generator(np.random.SFC64(np.random.SeedSequence([seed, int(draw), *key])))


@dataclass(frozen=True, kw_only=True)
class Users:
    """All user slots on one day; `id_U` changes when a slot is taken over by a new user."""

    id_U: I64
    activity_U: F32  # mean 1
    bias_U: F32
    purchase_U: F32
    interest_SUD: F32  # today's interest by surface
    shared_UD: F32  # today's shared part, what organic events follow
    cluster_U: I64  # 0 .. NUM_CLUSTERS - 1, noisy
    seen_interest_UD: F32  # yesterday's shared part with noise
    seen_purchase_U: F32


@dataclass(frozen=True, kw_only=True)
class Ads:
    """All ad slots on one day."""

    id_A: I64
    campaign_A: I64
    advertiser_A: I64
    category_A: I64
    wants_conversion_A: NDArray[np.bool_]
    quality_A: F32
    latent_AD: F32  # unit norm
    popularity_A: NDArray[np.float64]  # sums to 1


def generation_of(
    slots: int, day: int, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Which occupant each slot has on a day (0 where it never changes), and for how many days."""
    renewing = rng.random(slots) < RENEWING
    phase = rng.integers(0, LIFE_DAYS, slots)
    generation = np.where(renewing, (day + phase) // LIFE_DAYS, 0)
    age = np.where(renewing, (day + phase) % LIFE_DAYS + 1, MEMORY_DAYS)
    return generation.astype(np.int64), age.astype(np.int64)


def categories_of(world: PlantedConfig) -> F32:
    """Unit vectors of the categories, [categories, D]."""
    rng = stream(world.seed, Draw.CATEGORY)
    return _unit(rng.standard_normal((world.categories, LATENT_WIDTH), dtype=np.float32))


def contexts_of(world: PlantedConfig) -> F32:
    """What each value of the request attribute adds to the click logit."""
    rng = stream(world.seed, Draw.CONTEXT)
    return rng.standard_normal(NUM_CONTEXTS, dtype=np.float32) * np.float32(CONTEXT_SD)


def users_of(world: PlantedConfig, day: int, num_surfaces: int) -> Users:
    """The users of a day (days since 1970)."""
    slots = world.users
    generation, age = generation_of(slots, day, stream(world.seed, Draw.USER_LIFE))
    today, yesterday = _interest(world, day, generation, age, num_surfaces)
    personal = _occupants(world, Draw.USER, generation, 3)
    noise = stream(world.seed, Draw.USER_FEATURES, day).standard_normal(
        (slots, 2 * LATENT_WIDTH + 1), dtype=np.float32
    )
    shared, own = today[0], today[1:]
    return Users(
        id_U=1 + np.arange(slots, dtype=np.int64) + generation * slots,
        activity_U=_activity(world, personal[:, 0]),
        bias_U=np.float32(USER_BIAS_SD) * personal[:, 1],
        purchase_U=personal[:, 2],
        interest_SUD=np.float32(SHARED**0.5) * shared + np.float32((1 - SHARED) ** 0.5) * own,
        shared_UD=shared,
        cluster_U=_clusters(world, yesterday + CLUSTER_NOISE * noise[:, LATENT_WIDTH:-1]),
        seen_interest_UD=yesterday + np.float32(INTEREST_NOISE) * noise[:, :LATENT_WIDTH],
        seen_purchase_U=personal[:, 2] + np.float32(PURCHASE_NOISE) * noise[:, -1],
    )


def activity_of(world: PlantedConfig, day: int) -> F32:
    """How active every user of a day is, mean 1: `users_of(...).activity_U` alone."""
    generation, _ = generation_of(world.users, day, stream(world.seed, Draw.USER_LIFE))
    return _activity(world, _occupants(world, Draw.USER, generation, 1)[:, 0])


def ads_of(world: PlantedConfig, day: int) -> Ads:
    """The ads of a day (days since 1970)."""
    slots = world.ads
    generation, _ = generation_of(slots, day, stream(world.seed, Draw.AD_LIFE))
    rng = stream(world.seed, Draw.AD)
    rank = rng.permutation(slots)
    category = rng.integers(0, world.categories, slots)
    wants_conversion = rng.random(slots) < 0.3
    own = _occupants(world, Draw.AD, generation, LATENT_WIDTH + 1)
    latent = CATEGORY_WEIGHT * categories_of(world)[category] + (
        1 - CATEGORY_WEIGHT**2
    ) ** 0.5 * _unit(own[:, :LATENT_WIDTH])
    popularity = 1.0 / (1.0 + rank)
    number = np.arange(slots, dtype=np.int64) + generation * slots
    return Ads(
        id_A=1 + number,
        campaign_A=1 + number // 2,
        advertiser_A=1 + np.arange(slots, dtype=np.int64) % max(1, slots // 8),
        category_A=1 + category.astype(np.int64),
        wants_conversion_A=wants_conversion,
        quality_A=np.float32(AD_QUALITY_SD) * own[:, -1],
        latent_AD=_unit(latent.astype(np.float32)),
        popularity_A=popularity / popularity.sum(),
    )


def budget_ends(world: PlantedConfig, day: int) -> I64:
    """When each ad's budget of the day runs out, [A]: the day's end where it lasts."""
    rng = stream(world.seed, Draw.BUDGET, day)
    ends = daytimes(rng, world.ads)
    spent = rng.random(world.ads) < world.exhausted
    return np.where(spent, day * DAY_US + ends.astype(np.int64), (day + 1) * DAY_US)


def daytimes(rng: np.random.Generator, count: int) -> NDArray[np.float64]:
    """Times within a day (microseconds): quiet at 4 h, busy around noon and busiest at 20 h."""
    hour = np.linspace(0.0, 24.0, 24 * 60 + 1)
    load = (
        0.25 + np.exp(-(((hour - 12.5) / 3.5) ** 2)) + 1.4 * np.exp(-(((hour - 20.0) / 2.5) ** 2))
    )
    total = np.concatenate([[0.0], np.cumsum((load[1:] + load[:-1]) / 2)])
    return np.interp(rng.random(count), total / total[-1], hour) * HOUR_US


def affinity_of(interest: F32, latent_AD: F32, ads: NDArray[np.integer]) -> F32:
    """Inner products, one latent dimension after the other: no BLAS, so the same bits always."""
    total = np.zeros(ads.shape, dtype=np.float32)
    for d in range(latent_AD.shape[1]):
        total += interest[..., d] * latent_AD[ads, d]
    return total


def _interest(
    world: PlantedConfig, day: int, generation: I64, age: I64, num_surfaces: int
) -> tuple[F32, F32]:
    """AR(1) interests of unit variance: today's [1 + surfaces, U, D], shared part first, and
    yesterday's shared part [U, D].

    x_t = sqrt(1 - r^2) sum_{k < age} r^k e_{t-k} + r^age base, with e drawn by absolute day.
    """
    parts = 1 + num_surfaces
    base = _occupants(world, Draw.INTEREST_BASE, generation, parts * LATENT_WIDTH)
    base = base.reshape(world.users, parts, LATENT_WIDTH).transpose(1, 0, 2)
    state = np.zeros((parts, world.users, LATENT_WIDTH), dtype=np.float32)
    yesterday = np.zeros_like(state[0])

    def noise_of(k: int) -> F32:
        # the shared part is drawn first: it is the same whatever the number of surfaces
        rng = stream(world.seed, Draw.INTEREST_STEP, max(day - k, 0))
        return rng.standard_normal(state.shape, dtype=np.float32)

    back = range(MEMORY_DAYS - 1, -1, -1)
    for k, noise in zip(back, prefetched(noise_of, back, ahead=2), strict=True):
        if k == 0:
            yesterday = state[0] + _decay(age - 1) * base[0]
        noise *= np.where(k < age, (1 - DRIFT**2) ** 0.5, 0.0).astype(np.float32)[:, None]
        state *= np.float32(DRIFT)
        state += noise
    return state + _decay(age) * base, yesterday


def _activity(world: PlantedConfig, normal_U: F32) -> F32:
    activity = np.exp(world.activity_sd * normal_U)
    return (activity / activity.mean()).astype(np.float32)


def _decay(age: I64) -> F32:
    return (DRIFT ** age.astype(np.float64)).astype(np.float32)[:, None]


def _occupants(world: PlantedConfig, draw: Draw, generation: I64, width: int) -> F32:
    """Standard normals that belong to a slot's present occupant, [slots, width]."""
    values = np.empty((len(generation), width), dtype=np.float32)
    for number in np.unique(generation):
        rng = stream(world.seed, draw, int(number))
        # drawn column by column: a wider request leaves the first columns as they are
        drawn = rng.standard_normal((width, len(generation)), dtype=np.float32).T
        here = generation == number
        values[here] = drawn[here]
    return values


def _clusters(world: PlantedConfig, noisy_UD: F32) -> I64:
    rng = stream(world.seed, Draw.CLUSTER)
    centres = _unit(rng.standard_normal((NUM_CLUSTERS, LATENT_WIDTH), dtype=np.float32))
    likeness = sum(noisy_UD[:, d, None] * centres[None, :, d] for d in range(LATENT_WIDTH))
    return np.asarray(likeness).argmax(axis=1).astype(np.int64)


def _unit(x: F32) -> F32:
    norm = np.sqrt((x * x).sum(axis=-1, keepdims=True))
    return (x / np.maximum(norm, np.float32(1e-12))).astype(np.float32)
