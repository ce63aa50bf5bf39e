"""The canonical tables of a played day, in parts of bounded size.

Every function yields tables that follow each other in time order; random draws are made for the
whole day at once, so that the parts do not decide what is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from data_contracts.schema import (
    CANDIDATES,
    CONVERSIONS,
    ENGAGEMENTS,
    TERM_PREFIX,
    impressions_with,
)
from pipeline.mixing.synthetic_day import (
    DELAY_MEDIAN_US,
    DELAY_SD,
    LONGEST_DELAY_DAYS,
    Delivery,
)
from pipeline.mixing.synthetic_scaling import events_of
from pipeline.mixing.synthetic_world import (
    LATENT_WIDTH,
    Draw,
    Users,
    categories_of,
    daytimes,
    stream,
)
from pipeline.run.planted import PLANTED_SURFACES, SCALING_KINDS, PlantedConfig
from pipeline.run.window import DAY_US

ORGANIC_GAIN = 2.5
ITEMS_PER_CATEGORY = 1_000
VALUE_SD = 0.5
ROWS_PER_PART = 1 << 17
CANDIDATES_PER_PART = 1 << 20
SPARSE = ("user_cluster", "request_attribute")
DENSE = (*(f"interest_{d}" for d in range(LATENT_WIDTH)), "purchase_intent")
TRUTH = pa.schema(
    [
        pa.field("impression_id", pa.int64(), nullable=False),
        pa.field("user_id", pa.int64(), nullable=False),
        pa.field("p_click", pa.float64(), nullable=False),
        pa.field("p_conversion", pa.float64(), nullable=False),
    ]
)
Columns = dict[str, NDArray[np.generic] | pa.Array]


def impressions(delivery: Delivery, number: int) -> Iterator[pa.Table]:
    """Canonical impressions of a day with the planted features."""
    requests, users, ads = delivery.requests, delivery.users, delivery.ads
    for part in _parts(len(delivery.ad_I)):
        request, ad = delivery.request_I[part], delivery.ad_I[part]
        user = requests.user_R[request]
        seen = users.seen_interest_UD[user]
        wants = ads.wants_conversion_A[ad].astype(np.int8)
        columns: Columns = {
            "impression_id": ids_of(number, part),
            "request_id": (np.int64(number) << 32) + request,
            "ts": requests.ts_R[request],
            "surface": _names(PLANTED_SURFACES, requests.surface_R[request]),
            "user_id": users.id_U[user],
            "ad_id": ads.id_A[ad],
            "campaign_id": ads.campaign_A[ad],
            "advertiser_id": ads.advertiser_A[ad],
            "category_id": ads.category_A[ad],
            "objective": _names(("click", "conversion"), wants),
            "position": delivery.position_I[part],
            "click": delivery.click_I[part].astype(np.int8),
            "user_cluster": users.cluster_U[user],
            "request_attribute": requests.context_R[request],
            "purchase_intent": users.seen_purchase_U[user],
            **{f"interest_{d}": seen[:, d] for d in range(LATENT_WIDTH)},
        }
        yield _table(impressions_with(SPARSE, DENSE), columns)


def conversions(world: PlantedConfig, delivery: Delivery, number: int) -> pa.Table:
    """All conversions of a day's impressions, whenever they happen, with their surface."""
    rows = np.flatnonzero(delivery.buy_I)
    requests = delivery.requests
    request = delivery.request_I[rows]
    price = 1.0 + delivery.ad_I[rows] % 20
    noise = stream(world.seed, Draw.VALUE, number).standard_normal(len(rows))
    columns: Columns = {
        "impression_id": (np.int64(number) << 32) + rows,
        "user_id": delivery.users.id_U[requests.user_R[request]],
        "kind": _names(("conversion",), np.zeros(len(rows), dtype=np.int8)),
        "ts": requests.ts_R[request] + delivery.delay_I[rows],
        "value": np.round(price * np.exp(VALUE_SD * noise), 2),
    }
    surface = _names(PLANTED_SURFACES, requests.surface_R[request])
    return _table(CONVERSIONS, columns).append_column("surface", surface)


def engagements(world: PlantedConfig, users: Users, number: int) -> Iterator[pa.Table]:
    """Organic events of a day; their categories follow the shared interest."""
    if world.variant == "scaling":
        yield from _kinds_of_events(world, number)
        return
    rng = stream(world.seed, Draw.ORGANIC, number)
    count = rng.poisson(world.organic_per_user_day * users.activity_U.astype(np.float64))
    user = np.repeat(np.arange(world.users), count)
    ts = np.sort(daytimes(rng, len(user)).astype(np.int64))
    user = user[rng.permutation(len(user))]
    category = _categories(world, users, user, rng.random(len(user)))
    item = category * ITEMS_PER_CATEGORY + (ITEMS_PER_CATEGORY * rng.random(len(user)) ** 3)
    like = rng.random(len(user)) < 0.2
    edges = np.cumsum(world.shares)[:-1]
    surface = np.searchsorted(edges, rng.random(len(user)), side="right").astype(np.int8)
    for part in _parts(len(user)):
        columns: Columns = {
            "user_id": users.id_U[user[part]],
            "ts": number * DAY_US + ts[part],
            "kind": _names(("view", "like"), like[part].astype(np.int8)),
            "item_id": 1 + item[part].astype(np.int64),
            "category_id": 1 + category[part].astype(np.int64),
            "surface": _names(PLANTED_SURFACES, surface[part]),
        }
        yield _table(ENGAGEMENTS, columns)


def truth(delivery: Delivery, number: int, window_us: int) -> Iterator[pa.Table]:
    """The true probability of each label: a click, and a conversion inside the window.

    A last column `surface` says where; it is not part of `TRUTH`.
    """
    schema = truth_schema(tuple(delivery.terms))
    limit = min(window_us, LONGEST_DELAY_DAYS * DAY_US)
    in_time = 0.5 * math.erfc(-math.log(limit / DELAY_MEDIAN_US) / DELAY_SD / math.sqrt(2.0))
    requests = delivery.requests
    for part in _parts(len(delivery.ad_I)):
        request = delivery.request_I[part]
        columns: Columns = {
            "impression_id": ids_of(number, part),
            "user_id": delivery.users.id_U[requests.user_R[request]],
            "p_click": delivery.p_click_I[part],
            "p_conversion": delivery.p_click_I[part] * delivery.p_buy_I[part] * in_time,
            **{f"{TERM_PREFIX}{name}": term[part] for name, term in delivery.terms.items()},
        }
        surface = _names(PLANTED_SURFACES, requests.surface_R[request])
        yield _table(schema, columns).append_column("surface", surface)


def truth_schema(terms: tuple[str, ...]) -> pa.Schema:
    """`TRUTH`, and the named terms of the click logit beside it."""
    extra = [pa.field(f"{TERM_PREFIX}{name}", pa.float64(), nullable=False) for name in terms]
    return pa.schema([*TRUTH, *extra])


def candidates(delivery: Delivery, number: int) -> Iterator[pa.Table]:
    """The finalists of all requests, best first, in parts of whole requests."""
    requests = delivery.requests
    width = requests.ads_RF.shape[1]
    rank = np.arange(width, dtype=np.int16)
    for part in _parts(len(requests.ts_R), max(1, CANDIDATES_PER_PART // max(1, width))):
        there = requests.ads_RF[part] >= 0
        count = there.sum(axis=1)
        user_id = delivery.users.id_U[requests.user_R[part]]
        columns: Columns = {
            "request_id": np.repeat(ids_of(number, part), count),
            "ts": np.repeat(requests.ts_R[part], count),
            "surface": _names(PLANTED_SURFACES, np.repeat(requests.surface_R[part], count)),
            "user_id": np.repeat(user_id, count),
            "ad_id": delivery.ads.id_A[requests.ads_RF[part][there]],
            "rank": np.broadcast_to(rank, there.shape)[there],
            "score": requests.score_RF[part][there],
            "shown": (rank[None, :] < requests.shown_R[part, None])[there].astype(np.int8),
        }
        yield _table(CANDIDATES, columns)


def ids_of(number: int, rows: slice) -> NDArray[np.int64]:
    """Ids that no other day uses: the day in the upper bits, the row in the lower 32."""
    return (np.int64(number) << 32) + np.arange(rows.start, rows.stop, dtype=np.int64)


def _kinds_of_events(world: PlantedConfig, number: int) -> Iterator[pa.Table]:
    """The scaling world's events: an item is its category, and its kind says what was done."""
    events = events_of(world, number)
    for part in _parts(len(events.ts_E)):
        category = 1 + events.category_E[part]
        columns: Columns = {
            "user_id": events.id_E[part],
            "ts": events.ts_E[part],
            "kind": _names(SCALING_KINDS, events.kind_E[part]),
            "item_id": category,
            "category_id": category,
            "surface": _names(PLANTED_SURFACES, np.zeros(len(category), dtype=np.int8)),
        }
        yield _table(ENGAGEMENTS, columns)


def _categories(
    world: PlantedConfig, users: Users, user: NDArray[np.int64], chance: NDArray[np.float64]
) -> NDArray[np.int32]:
    """The category of every event, by softmax over the likeness of interest and category."""
    centres = categories_of(world)
    share = np.zeros((world.users, world.categories))
    for d in range(LATENT_WIDTH):
        share += users.shared_UD[:, d, None].astype(np.float64) * centres[None, :, d]
    share *= ORGANIC_GAIN
    np.exp(share, out=share)
    share /= share.sum(axis=1, keepdims=True)
    ceiling = np.cumsum(share, axis=1, out=share)[:, :-1]
    category = np.empty(len(user), dtype=np.int32)
    for part in _parts(len(user), ROWS_PER_PART // 8):
        category[part] = (chance[part, None] >= ceiling[user[part]]).sum(axis=1)
    return category


def _parts(rows: int, size: int = ROWS_PER_PART) -> Iterator[slice]:
    """Consecutive slices of at most `size` rows; an empty one where there are no rows."""
    for begin in range(0, max(rows, 1), size):
        yield slice(begin, min(begin + size, rows))


def _names(names: tuple[str, ...], codes: NDArray[np.integer]) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int8)), list(names)).cast(
        pa.string()
    )


def _table(schema: pa.Schema, columns: Columns) -> pa.Table:
    arrays = [pa.array(columns[field.name]).cast(field.type) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema)
