"""The planted generator's files: one day of canonical tables, and its truth beside them.

A day depends on (source.planted, surfaces, the date) alone: the same bytes whenever it is made,
by however many threads, and whatever other days exist. Conversions lie in the day on which they
happen, so a day's file also holds those of the clicks of the days before.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from data_contracts.schema import CANDIDATES, CONVERSIONS, ENGAGEMENTS, impressions_with
from pipeline.mixing.synthetic_day import LONGEST_DELAY_DAYS, deliver
from pipeline.mixing.synthetic_tables import (
    DENSE,
    SPARSE,
    TRUTH,
    candidates,
    conversions,
    engagements,
    impressions,
    truth,
    truth_schema,
)
from pipeline.run.config import RunConfig
from pipeline.run.errors import ConfigError, require
from pipeline.run.planted import PLANTED_SURFACES, PlantedConfig
from pipeline.run.window import DAY_US, HOUR_US, day_begin_us

__all__ = ["DENSE", "SPARSE", "TRUTH", "conversion_window_us", "generate_day", "planted_of"]
MOST_THREADS = 4  # each holds a block of users at a time


def generate_day(
    config: RunConfig,
    day: str,
    landing: Path,
    *,
    sold: dict[int, pa.Table] | None = None,
    threads: int | None = None,
) -> dict[str, int]:
    """Write `landing/<table>/day=<day>/part-0.parquet` for every table and for truth.

    Returns the rows of each. `sold` keeps the conversions of the days that were played (by days
    since 1970), so that a caller who makes consecutive days plays each of them once; it never
    changes what is written, and nor does the number of `threads` (None: one per processor, four
    at most). All planted surfaces are played; rows of `config.surfaces` are kept, so a run on
    some of them sees the very rows that a run on all sees.
    """
    world = planted_of(config)
    number = day_begin_us(day) // DAY_US
    sold = {} if sold is None else sold
    threads = threads or min(len(os.sched_getaffinity(0)), MOST_THREADS)
    for old in [n for n in sold if n < number - LONGEST_DELAY_DAYS]:
        del sold[old]
    for earlier in range(number - LONGEST_DELAY_DAYS, number):
        if earlier not in sold:
            played = deliver(world, earlier, len(PLANTED_SURFACES), threads)
            sold[earlier] = conversions(world, played, earlier)
            del played  # a day is large, and the next one is about to be made
    delivery = deliver(world, number, len(PLANTED_SURFACES), threads)
    sold[number] = conversions(world, delivery, number)
    window_us = conversion_window_us(config)
    parts: dict[str, tuple[pa.Schema, Iterable[pa.Table]]] = {
        "candidates": (CANDIDATES, candidates(delivery, number)),
        "impressions": (impressions_with(SPARSE, DENSE), impressions(delivery, number)),
        "truth": (truth_schema(tuple(delivery.terms)), truth(delivery, number, window_us)),
        "engagements": (ENGAGEMENTS, engagements(world, delivery.users, number)),
        "conversions": (CONVERSIONS, [_happened_on(sold, number)]),
    }
    with ThreadPoolExecutor(threads) as pool:
        jobs = {
            table: pool.submit(_write, _part(landing, table, day), schema, found, config.surfaces)
            for table, (schema, found) in parts.items()
        }
    return {table: job.result() for table, job in jobs.items()}


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


def _happened_on(sold: dict[int, pa.Table], number: int) -> pa.Table:
    """The conversions that happen on a day, in time order, with their surface."""
    table = pa.concat_tables([sold[n] for n in sorted(sold) if n <= number])
    ts = table["ts"].cast(pa.int64()).to_numpy()
    rows = np.flatnonzero((ts >= number * DAY_US) & (ts < (number + 1) * DAY_US))
    return table.take(pa.array(rows[np.argsort(ts[rows], kind="stable")]))


def _write(
    path: Path, schema: pa.Schema, parts: Iterable[pa.Table], surfaces: tuple[str, ...]
) -> int:
    """Write the rows on some surfaces; returns how many there are."""
    rows, writer = 0, None
    try:
        for part in parts:
            if len(surfaces) < len(PLANTED_SURFACES):
                part = part.filter(pc.is_in(part["surface"], pa.array(surfaces)))
            writer = writer or _writer(path, schema)
            writer.write_table(part.select(schema.names))
            rows += part.num_rows
    finally:
        if writer:
            writer.close()
    return rows


def _writer(path: Path, schema: pa.Schema) -> pq.ParquetWriter:
    """Dictionaries only where few values repeat: they halve the time to write the rest."""
    many = {"impression_id", "request_id", "ts", "user_id", "item_id"}
    few = [f.name for f in schema if f.name not in many and not pa.types.is_floating(f.type)]
    return pq.ParquetWriter(path, schema, compression="zstd", use_dictionary=few or False)


def _part(landing: Path, table: str, day: str) -> Path:
    path = landing / table / f"day={day}" / "part-0.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path
