"""Stage `as_served`: what the store would have served to the impressions that students learn from.

The vectors of the run's shards, computed by the run's own policy as of each tick of the students'
span, are walked in event time: an impression finds those that had become available and still live.
Students that learn from these see in training what they will see in use (arXiv 2604.12110).

Suffixes: N vectors.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.loopfm.arms import readers_of_store
from pipeline.loopfm.compress import to_arrow
from pipeline.loopfm.epoch import epoch_in_force
from pipeline.mixing.canonical import partitions
from pipeline.run.manifest import Manifest, Outcome, produce
from pipeline.run.paths import Run
from pipeline.run.window import days_between, window_of
from pipeline.solaris.coverage import best_age, shares
from pipeline.solaris.history import VectorHistory
from pipeline.solaris.publish import generation_of, inputs_of
from pipeline.solaris.serving import SOURCES, Served
from pipeline.solaris.vectors import written

CHUNK = 200_000  # lookups at once: bounds the memory of what is served
IDS = ("impression_id", "user_id", "ad_id", "ts_us")


def as_served(run: Run, unit: str = "") -> Manifest:
    """Write surface=S.parquet: per impression of the students' span what it would have got.

    Nothing is looked up, and nothing written, where no arm of `transfer.arms` reads the store.
    Figures: the arms that do, and for every surface the share of its impressions by source.
    """
    config, window = run.config, window_of(run.config)
    readers = readers_of_store(config)
    span = days_between(window.students_begin, window.day_end)
    inputs = _inputs(run, span) if readers else {}

    def build(folder: Path) -> Outcome:
        if not readers:
            return Outcome(rows=0, figures={"arms": []})
        history, rows, surfaces = history_of(run), 0, {}
        for surface in config.surfaces:
            shown = _shown(run, surface, span)
            surfaces[surface] = _write(folder / f"surface={surface}.parquet", history, shown)
            rows += len(shown)
        return Outcome(rows=rows, figures={"arms": readers, "shown_by_surface": surfaces})

    return produce(
        run.output("as_served"),
        stage="as_served",
        inputs=inputs,
        settings=(config.solaris, config.surfaces, readers, window),
        build=build,
    )


def history_of(run: Run) -> VectorHistory:
    """Every vector of the run's shards that was not refused, to be asked at any time."""
    generation = generation_of(run, epoch_in_force(run))
    return VectorHistory(written(run), generation, run.config.solaris.neighbours)


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


def _inputs(run: Run, days: tuple[str, ...]) -> dict[str, str]:
    shown = partitions(run, "impressions", days)
    lake = {str(p.folder.relative_to(run.lake())): p.manifest.fingerprint for p in shown}
    return inputs_of(run) | lake


def _shown(run: Run, surface: str, days: tuple[str, ...]) -> pl.DataFrame:
    """Impressions of a surface in time order, as they lie in the lake."""
    index = run.config.surfaces.index(surface)
    parts = [p for p in partitions(run, "impressions", days) if p.surface == index]
    files = [path for part in parts for path in sorted(part.folder.glob("bucket=*.parquet"))]
    if not files:
        return pl.DataFrame(schema=dict.fromkeys(IDS, pl.Int64))
    ts_us = pl.col("ts").dt.epoch("us").alias("ts_us")
    rows = pl.scan_parquet(files, glob=False).select(*IDS[:3], ts_us).collect()
    return rows.sort("ts_us", "impression_id")


def _write(path: Path, history: VectorHistory, shown: pl.DataFrame) -> dict[str, Any]:
    """Serve all impressions, some at a time, and count them."""
    sources, ages = [], []
    writer: pq.ParquetWriter | None = None
    for some in _chunks(shown):
        served = history.serve(*(some[name].to_numpy() for name in IDS[1:]))
        sources.append(served.source_B)
        ages.append(best_age(served))
        table = served_table(served)
        for place, name in enumerate(("impression_id", "ts_us")):
            table = table.add_column(place, name, some[name].to_arrow())
        if writer is None:
            writer = pq.ParquetWriter(path, table.schema, compression="zstd")
        writer.write_table(table)
    if writer is not None:
        writer.close()
    return shares(np.concatenate(sources), np.concatenate(ages))


def _chunks(shown: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """At least one chunk, so that a surface without impressions has its file too."""
    for begin in range(0, max(len(shown), 1), CHUNK):
        yield shown[begin : begin + CHUNK]
