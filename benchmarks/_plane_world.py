"""Inputs of the data-plane benchmarks: a two-day log of plain numpy columns, landed as Parquet."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from data_contracts.schema import TIMESTAMP
from model.config import (
    DenseFeature,
    EmbeddingTable,
    EventAttribute,
    EventType,
    FeatureSet,
    Objective,
    SparseFeature,
)
from pipeline.run.codec import to_dict
from pipeline.run.config import RunConfig, SourceConfig, TableMapping, WindowConfig
from pipeline.run.paths import Run, run_folder
from pipeline.run.window import DAY_US, HOUR_US, day_begin_us, window_of

LAST = "2026-03-10"
SURFACES = ("feed", "reels", "stories")
SHARES = (0.5, 0.3, 0.2)
CHUNK = 500_000
ADS, CATEGORIES, ROWS_PER_USER = 20_000, 64, 50
TABLES = ("impressions", "conversions", "engagements")


def config_of(*, days: int = 2, buckets: int = 8, retention: int = 7) -> RunConfig:
    """A run over `days` days of twenty-column impressions with two event types."""
    dense = tuple(DenseFeature(name=f"dense_{i}", scope="user") for i in range(6))
    mapping = tuple(TableMapping(table=t, path="{landing}/" + t + "/day={day}") for t in TABLES)  # type: ignore[arg-type]
    return RunConfig(
        day=LAST,
        size="smoke",
        source=SourceConfig(name="bench", tables=mapping),
        surfaces=SURFACES,
        objectives=(Objective(name="click"), Objective(name="conversion", window_hours=24)),
        features=FeatureSet(
            tables=(
                EmbeddingTable(name="ad", buckets=ADS),
                EmbeddingTable(name="category", buckets=CATEGORIES),
            ),
            sparse=(
                SparseFeature(name="ad_id", table="ad", scope="ad"),
                SparseFeature(name="category_id", table="category", scope="ad"),
                SparseFeature(name="cluster", table="category", scope="user"),
                SparseFeature(name="attribute", table="category", scope="request"),
            ),
            dense=dense,
            events=(_event("shown", "impressions", "ad_id"), _event("organic", "engagements")),
            matches=(),
        ),
        window=WindowConfig(
            bootstrap_days=days,
            student_days=1,
            holdout_hours=12,
            retention_days=retention,
            num_buckets=buckets,
        ),
    )


def _event(name: str, source: str, column: str = "category_id") -> EventType:
    table = "ad" if column == "ad_id" else "category"
    attributes = (EventAttribute(column=column, table=table),)
    return EventType(name=name, source=source, attributes=attributes, max_len=32)  # type: ignore[arg-type]


def run_of(home: Path, config: RunConfig) -> Run:
    """The run folder of a config, with its run.json."""
    folder = run_folder(config, home)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text(json.dumps(to_dict(config)))
    return Run(folder=folder, config=config)


def yesterday_of(run: Run) -> Run:
    """The same run a day earlier."""
    before = dt.date.fromisoformat(run.config.day) - dt.timedelta(days=1)
    return run_of(run.home, dataclasses.replace(run.config, day=before.isoformat()))


def land(run: Run, impressions: int, engagements: int) -> int:
    """Write that many rows over the window's days, in time order; the bytes on disk."""
    days = window_of(run.config).days
    users = max(1_000, impressions // ROWS_PER_USER)
    for place, day in enumerate(days):
        rng = np.random.default_rng([place, 11])
        shown = _write(
            run, "impressions", day, _impressions(rng, day, impressions // len(days), users)
        )
        _write(run, "conversions", day, iter([_conversions(rng, shown)]))
        _write(run, "engagements", day, _engagements(rng, day, engagements // len(days), users))
    return sum(p.stat().st_size for p in run.landing().rglob("*.parquet"))


def _write(run: Run, table: str, day: str, chunks: Iterator[pa.Table]) -> pa.Table:
    """One file per day and table; the last chunk."""
    path = run.landing(table, f"day={day}") / "part-0.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    chunk = next(chunks)
    with pq.ParquetWriter(path, chunk.schema) as writer:
        writer.write_table(chunk)
        for chunk in chunks:
            writer.write_table(chunk)
    return chunk


def _spans(day: str, rows: int) -> Iterator[tuple[int, int, int]]:
    """Rows of a chunk, and the time that it covers."""
    starts = range(0, rows, CHUNK)
    for start in starts:
        count = min(CHUNK, rows - start)
        begin = day_begin_us(day) + DAY_US * start // rows
        yield count, begin, day_begin_us(day) + DAY_US * (start + count) // rows


def _times(rng: np.random.Generator, count: int, begin: int, end: int) -> np.ndarray:
    return np.sort(rng.integers(begin, end, count))


def _impressions(rng: np.random.Generator, day: str, rows: int, users: int) -> Iterator[pa.Table]:
    first = day_begin_us(day) // DAY_US * 10**9
    for count, begin, end in _spans(day, rows):
        ads = (rng.pareto(1.0, count) * 10).astype(np.int64) % ADS
        ids = first + np.arange(count)
        first += count
        user = rng.integers(0, users, count)
        columns = {
            "impression_id": pa.array(ids),
            "request_id": pa.array(ids // 2),
            "ts": pa.array(_times(rng, count, begin, end)).cast(TIMESTAMP),
            "surface": _words(rng.choice(len(SURFACES), count, p=SHARES), SURFACES),
            "user_id": pa.array(user),
            "ad_id": pa.array(ads),
            "campaign_id": pa.array(ads // 4),
            "advertiser_id": pa.array(ads // 20),
            "category_id": pa.array(ads % CATEGORIES),
            "objective": _words((ads % 2).astype(np.int64), ("click", "conversion")),
            "position": pa.array(rng.integers(0, 8, count).astype(np.int16)),
            "click": pa.array((rng.random(count) < 0.03).astype(np.int8)),
            "cluster": pa.array(user % 32),
            "attribute": pa.array(rng.integers(0, 16, count)),
        }
        columns |= {
            f"dense_{i}": pa.array(rng.standard_normal(count, dtype=np.float32)) for i in range(6)
        }
        yield pa.table(columns)


def _conversions(rng: np.random.Generator, shown: pa.Table) -> pa.Table:
    some = shown.take(np.flatnonzero(rng.random(len(shown)) < 0.01))
    begin = some["ts"].cast(pa.int64()).to_numpy()
    end = begin.max() // DAY_US * DAY_US + DAY_US - 1
    late = np.minimum(begin + rng.exponential(3 * HOUR_US, len(some)).astype(np.int64), end)
    order = np.argsort(late, kind="stable")
    return pa.table(
        {
            "impression_id": some["impression_id"].take(order),
            "user_id": some["user_id"].take(order),
            "kind": _words(np.zeros(len(some), np.int64), ("conversion",)),
            "ts": pa.array(late[order]).cast(TIMESTAMP),
            "value": pa.array(rng.exponential(20.0, len(some))),
        }
    )


def _engagements(rng: np.random.Generator, day: str, rows: int, users: int) -> Iterator[pa.Table]:
    for count, begin, end in _spans(day, rows):
        item = rng.integers(0, 100_000, count)
        yield pa.table(
            {
                "user_id": pa.array(rng.integers(0, users, count)),
                "ts": pa.array(_times(rng, count, begin, end)).cast(TIMESTAMP),
                "kind": _words(rng.integers(0, 3, count), ("view", "cart", "buy")),
                "item_id": pa.array(item),
                "category_id": pa.array(item % CATEGORIES),
                "surface": _words(rng.choice(len(SURFACES), count, p=SHARES), SURFACES),
            }
        )


def _words(places: np.ndarray, words: tuple[str, ...]) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(places.astype(np.int32)), list(words)).cast(
        pa.string()
    )
