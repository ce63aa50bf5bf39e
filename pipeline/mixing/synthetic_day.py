"""One planted day: requests, their finalists, what is shown, clicked and bought.

Suffixes: U user slots, R requests in time order, F finalists of a request, I impressions in
time order. All times are microseconds since 1970 UTC.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pipeline.mixing.synthetic_scaling import Rows, terms_of
from pipeline.mixing.synthetic_world import (
    F32,
    I64,
    NUM_CONTEXTS,
    Ads,
    Draw,
    Users,
    ads_of,
    affinity_of,
    budget_ends,
    contexts_of,
    daytimes,
    stream,
    users_of,
)
from pipeline.run.planted import PlantedConfig
from pipeline.run.window import DAY_US, HOUR_US

CLICK_RATES = (0.020, 0.035, 0.045)
SCALING_RATES = (0.085, 0.11, 0.12)
MEAN_SHOWN = 2.0  # one, two or three
REQUESTS_PER_SESSION = 3.0
SESSION_PAUSE_US = 180_000_000.0
POOL_SLOTS = 150
SLOT_LIFE_DAYS = 2
PREFERENCE_SD = 1.5
RANKING_GAIN = 1.0  # weight of affinity in the delivery score, beside Gumbel noise of scale 1
CLICK_GAIN = 1.6
POSITION_BIAS = 0.35
FATIGUE = 0.15
PURCHASE_GAIN = 1.0
PURCHASE_AFFINITY = 0.4
CONVERSION_RATE = 0.08  # of clicks
DELAY_MEDIAN_US = 2.0 * HOUR_US
DELAY_SD = 1.5  # of its logarithm
LONGEST_DELAY_DAYS = 2  # conversions that would take longer never happen
USERS_PER_BLOCK = 2_000
REQUESTS_PER_RACE = 1_024  # their draws fit into a processor's cache
NEWTON_TOLERANCE = 1e-11


@dataclass(frozen=True, kw_only=True)
class Requests:
    """Requests of a day in time order; F finalists each, best score first, slot -1 where fewer."""

    ts_R: I64
    user_R: I64  # user slot
    surface_R: NDArray[np.int8]
    context_R: I64
    shown_R: I64
    ads_RF: NDArray[np.int32]
    score_RF: F32


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """A whole day before it is written: the world, the requests and the impressions' truth."""

    users: Users
    ads: Ads
    requests: Requests
    request_I: I64  # index into the requests
    position_I: NDArray[np.int16]
    ad_I: I64  # ad slot
    p_click_I: NDArray[np.float64]
    p_buy_I: NDArray[np.float64]  # probability of a conversion, given a click
    click_I: NDArray[np.bool_]
    buy_I: NDArray[np.bool_]  # clicked and bought, however late
    delay_I: I64  # from impression to conversion, microseconds
    terms: dict[str, NDArray[np.float64]] = field(default_factory=dict)  # variant scaling only


def deliver(world: PlantedConfig, day: int, num_surfaces: int, threads: int = 1) -> Delivery:
    """Play one day (days since 1970) of the planted world, the same with any number of threads."""
    users, ads = users_of(world, day, num_surfaces), ads_of(world, day)
    arrivals = _arrivals(world, day, users, num_surfaces)
    requests = _with_finalists(world, day, users, ads, arrivals, threads)
    request_I = np.repeat(np.arange(len(requests.ts_R)), requests.shown_R)
    first_R = np.cumsum(requests.shown_R) - requests.shown_R
    position_I = np.arange(len(request_I)) - first_R[request_I]
    ad_I = requests.ads_RF[request_I, position_I].astype(np.int64)
    logit, affinity, terms = _click_logit(
        world, day, users, ads, requests, request_I, position_I, ad_I
    )
    p_click, p_buy = _probabilities(world, users, requests, request_I, logit, affinity)
    rng = stream(world.seed, Draw.LABELS, day)
    click = rng.random(len(ad_I)) < p_click
    buy = click & (rng.random(len(ad_I)) < p_buy)
    delay = DELAY_MEDIAN_US * np.exp(DELAY_SD * rng.standard_normal(len(ad_I)))
    return Delivery(
        users=users,
        ads=ads,
        requests=requests,
        request_I=request_I,
        position_I=position_I.astype(np.int16),
        ad_I=ad_I,
        p_click_I=p_click,
        p_buy_I=p_buy,
        click_I=click,
        buy_I=buy & (delay < LONGEST_DELAY_DAYS * DAY_US),
        delay_I=np.maximum(delay, 1.0).astype(np.int64),
        terms=terms,
    )


def _arrivals(world: PlantedConfig, day: int, users: Users, num_surfaces: int) -> Requests:
    """Sessions of a few requests on one surface each, ordered by user; finalists come later."""
    rng = stream(world.seed, Draw.REQUESTS, day)
    rate = world.rows_per_day / world.users / MEAN_SHOWN / REQUESTS_PER_SESSION
    sessions_U = rng.poisson(rate * users.activity_U.astype(np.float64))
    user_of_session = np.repeat(np.arange(world.users), sessions_U)
    num = len(user_of_session)
    start = daytimes(rng, num)
    shares = np.resize(np.array(world.shares), num_surfaces)
    surface = np.searchsorted(np.cumsum(shares / shares.sum())[:-1], rng.random(num), side="right")
    context = rng.integers(0, NUM_CONTEXTS, num)
    length = 1 + rng.poisson(REQUESTS_PER_SESSION - 1, num)
    session_R = np.repeat(np.arange(num), length)
    pause = rng.exponential(SESSION_PAUSE_US, len(session_R))
    first = np.cumsum(length) - length
    so_far = np.cumsum(pause)
    offset = so_far - so_far[first[session_R]]
    begin = start[session_R]
    # a session that would run into the next day runs up to its start instead
    within = np.where(begin + offset < DAY_US, begin + offset, begin - offset)
    within = np.clip(within, 0, DAY_US - 1)
    return Requests(
        ts_R=day * DAY_US + within.astype(np.int64),
        user_R=user_of_session[session_R],
        surface_R=surface[session_R].astype(np.int8),
        context_R=context[session_R],
        shown_R=rng.integers(1, 4, len(session_R)),
        ads_RF=np.empty((0, 0), dtype=np.int32),
        score_RF=np.empty((0, 0), dtype=np.float32),
    )


def _with_finalists(
    world: PlantedConfig, day: int, users: Users, ads: Ads, arrivals: Requests, threads: int
) -> Requests:
    """Put the day in time order and fill in finalists and scores, block of users by block."""
    order = np.argsort(arrivals.ts_R, kind="stable")
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    kept = min(world.finalists, POOL_SLOTS)
    ads_RF = np.empty((len(order), kept), dtype=np.int32)
    score_RF = np.empty((len(order), kept), dtype=np.float32)

    def fill(block: int) -> None:
        first = block * USERS_PER_BLOCK
        last = min(first + USERS_PER_BLOCK, world.users)
        rows = slice(*np.searchsorted(arrivals.user_R, (first, last)))
        found = _finalists(world, day, block, users, ads, arrivals, rows)
        ads_RF[place[rows]], score_RF[place[rows]] = found

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(fill, range(-(-world.users // USERS_PER_BLOCK))))
    return Requests(
        ts_R=arrivals.ts_R[order],
        user_R=arrivals.user_R[order],
        surface_R=arrivals.surface_R[order],
        context_R=arrivals.context_R[order],
        shown_R=np.minimum(arrivals.shown_R[order], (ads_RF >= 0).sum(axis=1)),
        ads_RF=ads_RF,
        score_RF=score_RF,
    )


def _finalists(
    world: PlantedConfig,
    day: int,
    block: int,
    users: Users,
    ads: Ads,
    arrivals: Requests,
    rows: slice,
) -> tuple[NDArray[np.int32], F32]:
    """Finalists and scores of the requests `rows`, those of a block of users, best first."""
    user, surface = arrivals.user_R[rows], arrivals.surface_R[rows]
    first = block * USERS_PER_BLOCK
    pool_ads, pool_odds = _pools(world, day, block, min(USERS_PER_BLOCK, world.users - first), ads)
    rng = stream(world.seed, Draw.FINALISTS, day, block)
    ends_US = budget_ends(world, day)[pool_ads] if world.exhausted else None
    chosen, there = _raced(
        rng,
        pool_odds,
        user - first,
        min(world.finalists, POOL_SLOTS),
        ts_R=arrivals.ts_R[rows],
        ends_US=ends_US,
    )
    ads_RF = pool_ads[(user - first)[:, None], chosen]
    noise = -np.log(rng.standard_exponential(ads_RF.shape, dtype=np.float32) + 1e-9)
    affinity = affinity_of(users.interest_SUD[surface, user][:, None], ads.latent_AD, ads_RF)
    score = np.where(there, np.float32(RANKING_GAIN) * affinity + noise, -np.inf)
    order = np.argsort(-score, axis=1, kind="stable")
    ranked = np.take_along_axis(np.where(there, ads_RF, -1), order, axis=1)
    best_first = np.take_along_axis(score, order, axis=1)
    return ranked.astype(np.int32), best_first.astype(np.float32)


def _raced(
    rng: np.random.Generator, odds: F32, user_R: I64, kept: int, *, ts_R: I64, ends_US: I64 | None
) -> tuple[NDArray[np.int16], NDArray[np.bool_]]:
    """The slots that win each request's race, [R, kept], and whether they hold an ad.

    Exponential races: the k smallest of E / weight are a weighted draw without replacement. A slot
    whose ad's budget has ended by then does not race.
    """
    chosen = np.empty((len(user_R), kept), dtype=np.int16)
    there = np.empty(chosen.shape, dtype=np.bool_)
    for begin in range(0, len(user_R), REQUESTS_PER_RACE):
        part = slice(begin, begin + REQUESTS_PER_RACE)
        race = rng.standard_exponential((len(user_R[part]), POOL_SLOTS), dtype=np.float32)
        race += np.float32(1e-9)  # never 0, which times an absent slot's inf is no number
        race *= odds[user_R[part]]
        if ends_US is not None:
            race[ends_US[user_R[part]] <= ts_R[part, None]] = np.inf
        winners = np.argpartition(race, kept - 1, axis=1)[:, :kept]
        chosen[part] = winners
        there[part] = np.isfinite(np.take_along_axis(race, winners, axis=1))
    return chosen, there


def _pools(
    world: PlantedConfig, day: int, block: int, users: int, ads: Ads
) -> tuple[NDArray[np.int32], F32]:
    """Each user's campaign slots, [U, POOL_SLOTS]: the ad, and 1 / weight (inf: not there).

    A slot keeps its ad and its weight for SLOT_LIFE_DAYS; half of the slots renew each midnight.
    An ad that holds several slots of a user is one finalist with their weights together.
    """
    pool = np.empty((users, POOL_SLOTS), dtype=np.int32)
    weight = np.empty((users, POOL_SLOTS), dtype=np.float64)
    ceiling = np.cumsum(ads.popularity_A)[:-1]
    for phase in range(SLOT_LIFE_DAYS):
        generation = (day + phase) // SLOT_LIFE_DAYS
        rng = stream(world.seed, Draw.POOL, block, phase, generation)
        shape = pool[:, phase::SLOT_LIFE_DAYS].shape
        pool[:, phase::SLOT_LIFE_DAYS] = np.searchsorted(ceiling, rng.random(shape), side="right")
        weight[:, phase::SLOT_LIFE_DAYS] = np.exp(PREFERENCE_SD * rng.standard_normal(shape))
    key = (np.arange(users)[:, None] * world.ads + pool).ravel()
    _, first, same = np.unique(key, return_index=True, return_inverse=True)
    odds = np.full(key.shape, np.inf, dtype=np.float32)
    odds[first] = 1.0 / np.bincount(same, weights=weight.ravel())
    return pool, odds.reshape(pool.shape)


def _click_logit(
    world: PlantedConfig,
    day: int,
    users: Users,
    ads: Ads,
    requests: Requests,
    request_I: I64,
    position_I: I64,
    ad_I: I64,
) -> tuple[NDArray[np.float64], F32, dict[str, NDArray[np.float64]]]:
    """What clicks depend on, the surface's constant aside; the affinity; the variant's terms."""
    user, surface = requests.user_R[request_I], requests.surface_R[request_I]
    affinity = affinity_of(users.interest_SUD[surface, user], ads.latent_AD, ad_I)
    context = requests.context_R[request_I]
    if world.variant == "scaling":
        rows = Rows(user_I=user, ts_I=requests.ts_R[request_I], ad_I=ad_I, context_I=context)
        terms = terms_of(world, day, users, ads, rows)
        return np.sum(list(terms.values()), axis=0), affinity, terms
    logit = (
        CLICK_GAIN * affinity.astype(np.float64)
        + users.bias_U[user]
        + ads.quality_A[ad_I]
        + contexts_of(world)[context]
        - POSITION_BIAS * np.log2(1.0 + position_I)
        - FATIGUE * np.log1p(_earlier(user * world.ads + ad_I))
    )
    return logit, affinity, {}


def _probabilities(
    world: PlantedConfig,
    users: Users,
    requests: Requests,
    request_I: I64,
    logit: NDArray[np.float64],
    affinity: F32,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The true probabilities of a click, and of a conversion given a click."""
    user, surface = requests.user_R[request_I], requests.surface_R[request_I]
    rates = SCALING_RATES if world.variant == "scaling" else CLICK_RATES
    p_click = np.empty(len(logit))
    for s in range(len(users.interest_SUD)):
        here = surface == s
        rate = rates[s % len(rates)]
        p_click[here] = _at_rate(logit[here], rate, np.ones(here.sum()))
    want = PURCHASE_GAIN * users.purchase_U[user].astype(np.float64) + PURCHASE_AFFINITY * affinity
    return p_click, _at_rate(want, CONVERSION_RATE, p_click)


def _earlier(key_I: I64) -> I64:
    """How often each row's key occurred in the rows before it."""
    order = np.argsort(key_I, kind="stable")
    ordered = key_I[order]
    begins = np.concatenate([[True], ordered[1:] != ordered[:-1]])
    place = np.arange(len(order))
    count = np.empty(len(order), dtype=np.int64)
    count[order] = place - np.maximum.accumulate(np.where(begins, place, 0))
    return count


def _at_rate(
    logit: NDArray[np.float64], rate: float, weight: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Probabilities sigmoid(logit + b), with b such that their weighted mean is `rate`."""
    if not len(logit):
        return logit
    low = bisected(logit, rate, weight)
    return 1.0 / (1.0 + np.exp(-logit - low))


def bisected(logit: NDArray[np.float64], rate: float, weight: NDArray[np.float64]) -> float:
    """The lower end of [-30, 30] halved 40 times around the shift that gives the mean `rate`.

    Newton's method finds that shift in a few passes over the data. Where it is sure of a half,
    no mean is taken: the end is the same as if all were.
    """
    minus, p, total = -logit, np.empty_like(logit), weight.sum()

    def mean(shift: float) -> float:
        np.exp(np.subtract(minus, shift, out=p), out=p)
        np.add(p, 1.0, out=p)
        np.divide(1.0, p, out=p)
        return float(np.multiply(p, weight).sum() / total)

    near = _newton(mean, lambda: float((p * (1.0 - p) * weight).sum() / total), rate)
    sure = mean(near - NEWTON_TOLERANCE) < rate <= mean(near + NEWTON_TOLERANCE)
    low, high = -30.0, 30.0
    for _ in range(40):
        middle = (low + high) / 2
        known = sure and abs(middle - near) > 2 * NEWTON_TOLERANCE
        below = middle < near if known else mean(middle) < rate
        low, high = (middle, high) if below else (low, middle)
    return low


def _newton(mean: Callable[[float], float], slope: Callable[[], float], rate: float) -> float:
    """Where `mean` is about `rate`; `slope` is its derivative at the last point asked for."""
    shift = 0.0
    for _ in range(12):
        gap = mean(shift) - rate
        step = gap / max(slope(), 1e-12)
        shift = float(np.clip(shift - step, -30.0, 30.0))
        if abs(step) < NEWTON_TOLERANCE / 100:
            break
    return shift
