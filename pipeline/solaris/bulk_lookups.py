"""Lookups of whole days: which impressions ask, what they would have got, and that as a table.

Suffixes: R lookups.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.loopfm.compress import to_arrow
from pipeline.loopfm.epoch import epoch_in_force
from pipeline.mixing.canonical import Partition
from pipeline.run.paths import Run
from pipeline.solaris.coverage import Counted, best_age
from pipeline.solaris.history import VectorHistory
from pipeline.solaris.publish import generation_of
from pipeline.solaris.serving import SOURCES, Served
from pipeline.solaris.vectors import written

CHUNK = 200_000  # lookups at once: bounds the memory of what is served
PAIR, KEYS = ("user_id", "ad_id", "ts_us"), ("impression_id", "ts_us")


def history_of(run: Run) -> VectorHistory:
    """Every vector of the run's shards that was not refused, to be asked at any time."""
    generation = generation_of(run, epoch_in_force(run))
    return VectorHistory(written(run), generation, run.config.solaris.neighbours)


def shown_rows(parts: Sequence[Partition]) -> pl.DataFrame:
    """Impressions of partitions in time order: `KEYS`, `PAIR` and surface."""
    names = ("impression_id", "user_id", "ad_id", "surface", "ts_us")
    if not parts:
        kinds = dict.fromkeys(names, pl.Int64()) | {"surface": pl.String()}
        return pl.DataFrame(schema=kinds)
    files = [path for part in parts for path in sorted(part.folder.glob("bucket=*.parquet"))]
    surface, ts_us = pl.col("surface").cast(pl.String), pl.col("ts").dt.epoch("us").alias("ts_us")
    rows = pl.scan_parquet(files, glob=False).select(*names[:3], surface, ts_us).collect()
    return rows.sort("ts_us", "impression_id")


def serve_to(path: Path, history: VectorHistory, shown: pl.DataFrame) -> Counted:
    """Look impressions up, some at a time, and write `KEYS` and what they would have got."""
    counted = []
    writer: pq.ParquetWriter | None = None
    for some in _chunks(shown):
        served = history.serve(*(some[name].to_numpy() for name in PAIR))
        counted.append((served.source_B, served.pair_B, best_age(served)))
        table = served_table(served)
        for place, name in enumerate(KEYS):
            table = table.add_column(place, name, some[name].to_arrow())
        if writer is None:
            writer = pq.ParquetWriter(path, table.schema, compression="zstd")
        writer.write_table(table)
    if writer is not None:
        writer.close()
    source_R, pair_R, age_s_R = (np.concatenate(column) for column in zip(*counted, strict=True))
    return Counted(source_R=source_R, pair_R=pair_R, age_s_R=age_s_R)


def served_table(served: Served) -> pa.Table:
    """What lookups got, as rows that a student reads (`pipeline.loopfm.store_fields`)."""
    return pa.table(
        {
            "source": pa.DictionaryArray.from_arrays(pa.array(served.source_B), pa.array(SOURCES)),
            "pair": pa.DictionaryArray.from_arrays(pa.array(served.pair_B), pa.array(SOURCES)),
            "age_s": pa.array(served.age_s_B),
            "z": to_arrow(served.z_Bd),
            "user": pa.array(served.user_B),
            "user_age_s": pa.array(served.user_age_s_B),
            "user_z": to_arrow(served.user_z_Bd),
        }
    )


def _chunks(shown: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """At least one chunk, so that a surface without impressions has its file too."""
    for begin in range(0, max(len(shown), 1), CHUNK):
        yield shown[begin : begin + CHUNK]
