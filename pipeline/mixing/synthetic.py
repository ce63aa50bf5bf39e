"""The planted generator's files: one day of canonical tables, and its truth beside them.

A day depends on (source.planted, surfaces, the date) alone: the same bytes whenever it is made
and whatever other days exist. Conversions lie in the day on which they happen, so a day's file
also holds those of the clicks of the days before.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from data_contracts.schema import CANDIDATES, CONVERSIONS, ENGAGEMENTS, impressions_with
from pipeline.mixing.synthetic_day import (
    DELAY_MEDIAN_US,
    DELAY_SD,
    LONGEST_DELAY_DAYS,
    Delivery,
    daytimes,
    deliver,
)
from pipeline.mixing.synthetic_world import (
    LATENT_WIDTH,
    Draw,
    Users,
    categories_of,
    stream,
)
from pipeline.run.config import RunConfig
from pipeline.run.errors import ConfigError, require
from pipeline.run.planted import PLANTED_SURFACES, PlantedConfig
from pipeline.run.window import DAY_US, HOUR_US, day_begin_us

ORGANIC_GAIN = 2.5
ITEMS_PER_CATEGORY = 1_000
VALUE_SD = 0.5
CANDIDATES_PER_WRITE = 1 << 20
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


def generate_day(
    config: RunConfig, day: str, landing: Path, *, sold: dict[int, pa.Table] | None = None
) -> dict[str, int]:
    """Write `landing/<table>/day=<day>/part-0.parquet` for every table and for truth.

    Returns the rows of each. `sold` keeps the conversions of the days that were played (by days
    since 1970), so that a caller who makes consecutive days plays each of them once; it never
    changes what is written. All planted surfaces are played; rows of `config.surfaces` are kept,
    so a run on some of them sees the very rows that a run on all sees.
    """
    world = planted_of(config)
    number = day_begin_us(day) // DAY_US
    sold = {} if sold is None else sold
    delivery = deliver(world, number, len(PLANTED_SURFACES))
    sold[number] = conversions(world, delivery, number)
    for earlier in range(number - LONGEST_DELAY_DAYS, number):
        if earlier not in sold:
            played = deliver(world, earlier, len(PLANTED_SURFACES))
            sold[earlier] = conversions(world, played, earlier)
    for old in [n for n in sold if n < number - LONGEST_DELAY_DAYS]:
        del sold[old]
    shown = impressions(delivery, number)
    on_surface = pc.is_in(shown["surface"], pa.array(config.surfaces))
    events = engagements(world, delivery.users, number)
    tables = {
        "impressions": shown.filter(on_surface),
        "conversions": _conversions_on(sold, number, config.surfaces),
        "engagements": events.filter(pc.is_in(events["surface"], pa.array(config.surfaces))),
        "truth": truth(delivery, number, conversion_window_us(config)).filter(on_surface),
    }
    for name, table in tables.items():
        with _writer(_part(landing, name, day), table.schema) as writer:
            writer.write_table(table)
    rows = {name: table.num_rows for name, table in tables.items()}
    return rows | {"candidates": _write_candidates(landing, delivery, day, config.surfaces)}


def planted_of(config: RunConfig) -> PlantedConfig:
    """The generator's settings, or `ConfigError` when the source is not planted."""
    if config.source.planted is None:
        raise ConfigError(
            f"source.planted must be given, got {config.source.kind!r} source "
            f"{config.source.name!r}; use source planted to generate days"
        )
    unknown = sorted(set(config.surfaces) - set(PLANTED_SURFACES))
    require(
        not unknown,
        "surfaces",
        f"of {list(PLANTED_SURFACES)} for planted data",
        unknown,
        "choose among them",
    )
    return config.source.planted


def conversion_window_us(config: RunConfig) -> int:
    """The attribution window that the truth's `p_conversion` refers to, microseconds."""
    hours = [o.window_hours for o in config.objectives if o.name == "conversion"]
    return (hours[0] if hours else 24) * HOUR_US


def impressions(delivery: Delivery, number: int) -> pa.Table:
    """Canonical impressions of a day with the planted features, in time order."""
    requests, users, ads = delivery.requests, delivery.users, delivery.ads
    request, ad = delivery.request_I, delivery.ad_I
    user = requests.user_R[request]
    seen = users.seen_interest_UD[user]
    columns: Columns = {
        "impression_id": _ids(number, len(ad)),
        "request_id": _ids(number, len(requests.ts_R))[request],
        "ts": requests.ts_R[request],
        "surface": _names(PLANTED_SURFACES, requests.surface_R[request]),
        "user_id": users.id_U[user],
        "ad_id": ads.id_A[ad],
        "campaign_id": ads.campaign_A[ad],
        "advertiser_id": ads.advertiser_A[ad],
        "category_id": ads.category_A[ad],
        "objective": _names(("click", "conversion"), ads.wants_conversion_A[ad].astype(np.int8)),
        "position": delivery.position_I,
        "click": delivery.click_I.astype(np.int8),
        "user_cluster": users.cluster_U[user],
        "request_attribute": requests.context_R[request],
        "purchase_intent": users.seen_purchase_U[user],
        **{f"interest_{d}": seen[:, d] for d in range(LATENT_WIDTH)},
    }
    return _table(impressions_with(SPARSE, DENSE), columns)


def conversions(world: PlantedConfig, delivery: Delivery, number: int) -> pa.Table:
    """All conversions of a day's impressions, whenever they happen, with their surface."""
    rows = np.flatnonzero(delivery.buy_I)
    requests = delivery.requests
    request = delivery.request_I[rows]
    price = 1.0 + delivery.ad_I[rows] % 20
    noise = stream(world.seed, Draw.VALUE, number).standard_normal(len(rows))
    columns: Columns = {
        "impression_id": _ids(number, len(delivery.ad_I))[rows],
        "user_id": delivery.users.id_U[requests.user_R[request]],
        "kind": _names(("conversion",), np.zeros(len(rows), dtype=np.int8)),
        "ts": requests.ts_R[request] + delivery.delay_I[rows],
        "value": np.round(price * np.exp(VALUE_SD * noise), 2),
    }
    surface = _names(PLANTED_SURFACES, requests.surface_R[request])
    return _table(CONVERSIONS, columns).append_column("surface", surface)


def engagements(world: PlantedConfig, users: Users, number: int) -> pa.Table:
    """Organic events of a day in time order; their categories follow the shared interest."""
    rng = stream(world.seed, Draw.ORGANIC, number)
    count = rng.poisson(world.organic_per_user_day * users.activity_U.astype(np.float64))
    user = np.repeat(np.arange(world.users), count)
    ts = np.sort(daytimes(rng, len(user)).astype(np.int64))
    user = user[rng.permutation(len(user))]
    centres = categories_of(world)
    liking = sum(
        users.shared_UD[:, d, None].astype(np.float64) * centres[None, :, d]
        for d in range(LATENT_WIDTH)
    )
    share = np.exp(ORGANIC_GAIN * np.asarray(liking))
    ceiling = np.cumsum(share / share.sum(axis=1, keepdims=True), axis=1)
    category = (rng.random(len(user))[:, None] >= ceiling[user, :-1]).sum(axis=1)
    item = category * ITEMS_PER_CATEGORY + (ITEMS_PER_CATEGORY * rng.random(len(user)) ** 3)
    edges = np.cumsum(world.shares)[:-1]
    columns: Columns = {
        "user_id": users.id_U[user],
        "ts": number * DAY_US + ts,
        "kind": _names(("view", "like"), (rng.random(len(user)) < 0.2).astype(np.int8)),
        "item_id": 1 + item.astype(np.int64),
        "category_id": 1 + category,
        "surface": _names(
            PLANTED_SURFACES, np.searchsorted(edges, rng.random(len(user)), side="right")
        ),
    }
    return _table(ENGAGEMENTS, columns)


def truth(delivery: Delivery, number: int, window_us: int) -> pa.Table:
    """The true probability of each label: a click, and a conversion inside the window."""
    user = delivery.requests.user_R[delivery.request_I]
    limit = min(window_us, LONGEST_DELAY_DAYS * DAY_US)
    in_time = 0.5 * math.erfc(-math.log(limit / DELAY_MEDIAN_US) / DELAY_SD / math.sqrt(2.0))
    columns: Columns = {
        "impression_id": _ids(number, len(user)),
        "user_id": delivery.users.id_U[user],
        "p_click": delivery.p_click_I,
        "p_conversion": delivery.p_click_I * delivery.p_buy_I * in_time,
    }
    return _table(TRUTH, columns)


def _conversions_on(sold: dict[int, pa.Table], number: int, surfaces: tuple[str, ...]) -> pa.Table:
    """Those that happen on the day, in time order."""
    table = pa.concat_tables([sold[n] for n in sorted(sold) if n <= number])
    table = table.filter(pc.is_in(table["surface"], pa.array(surfaces))).drop_columns("surface")
    ts = table["ts"].cast(pa.int64()).to_numpy()
    rows = np.flatnonzero((ts >= number * DAY_US) & (ts < (number + 1) * DAY_US))
    return table.take(pa.array(rows[np.argsort(ts[rows], kind="stable")]))


def _write_candidates(
    landing: Path, delivery: Delivery, day: str, surfaces: tuple[str, ...]
) -> int:
    """Write the finalists of all requests, best first, in groups of whole requests."""
    requests = delivery.requests
    number = day_begin_us(day) // DAY_US
    ids = _ids(number, len(requests.ts_R))
    wanted = np.isin(requests.surface_R, [PLANTED_SURFACES.index(s) for s in surfaces])
    width = requests.ads_RF.shape[1]
    step = max(1, CANDIDATES_PER_WRITE // max(1, width))
    rank = np.arange(width, dtype=np.int16)
    rows = 0
    with _writer(_part(landing, "candidates", day), CANDIDATES) as writer:
        for first in range(0, len(ids), step):
            part = slice(first, first + step)
            there = (requests.ads_RF[part] >= 0) & wanted[part, None]
            count = there.sum(axis=1)
            columns: Columns = {
                "request_id": np.repeat(ids[part], count),
                "ts": np.repeat(requests.ts_R[part], count),
                "surface": _names(PLANTED_SURFACES, np.repeat(requests.surface_R[part], count)),
                "user_id": np.repeat(delivery.users.id_U[requests.user_R[part]], count),
                "ad_id": delivery.ads.id_A[requests.ads_RF[part][there]],
                "rank": np.broadcast_to(rank, there.shape)[there],
                "score": requests.score_RF[part][there],
                "shown": (rank[None, :] < requests.shown_R[part, None])[there].astype(np.int8),
            }
            writer.write_table(_table(CANDIDATES, columns))
            rows += int(count.sum())
    return rows


def _writer(path: Path, schema: pa.Schema) -> pq.ParquetWriter:
    """Dictionaries only where few values repeat: they halve the time to write the rest."""
    many = {"impression_id", "request_id", "ts", "user_id", "item_id"}
    few = [f.name for f in schema if f.name not in many and not pa.types.is_floating(f.type)]
    return pq.ParquetWriter(path, schema, compression="zstd", use_dictionary=few or False)


def _ids(number: int, count: int) -> NDArray[np.int64]:
    """Ids that no other day uses: the day in the upper bits, the row in the lower 32."""
    return (np.int64(number) << 32) + np.arange(count, dtype=np.int64)


def _names(names: tuple[str, ...], codes: NDArray[np.integer]) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int8)), list(names)).cast(
        pa.string()
    )


def _table(schema: pa.Schema, columns: Columns) -> pa.Table:
    arrays = [pa.array(columns[field.name]).cast(field.type) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def _part(landing: Path, table: str, day: str) -> Path:
    path = landing / table / f"day={day}" / "part-0.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path
