"""Stage `as_served`: what a store would have served to the impressions that students learn from.

Every request of the students' span is played in event time by the run's own policy: it offers
finalists, a tick takes what fits the budget, the epoch's frozen model computes the vectors as of
the tick, and an impression finds those that had become available and still live. Students that
learn from these see in training what they will see in use (arXiv 2604.12110).

Suffixes: R rows, N vectors.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.loopfm.arms import arms_named
from pipeline.loopfm.compress import to_arrow
from pipeline.loopfm.epoch import Epoch, epoch_in_force, refuse_future
from pipeline.mixing.canonical import partitions
from pipeline.run.errors import DataError
from pipeline.run.manifest import Manifest, Outcome, need_manifest, produce
from pipeline.run.paths import Run
from pipeline.run.window import DAY_US, HOUR_US, days_between, window_of
from pipeline.solaris.history import VectorHistory
from pipeline.solaris.offers import Codes
from pipeline.solaris.policy import choose_pairs
from pipeline.solaris.precompute import vectors_of
from pipeline.solaris.rankings import MINUTE_US, ranking_of
from pipeline.solaris.requests import partition_inputs, read_requests
from pipeline.solaris.serving import SOURCES, Served
from pipeline.solaris.store import Generation, Vectors

CHUNK = 200_000  # lookups at once: bounds the memory of what is served
IDS = ("impression_id", "user_id", "ad_id", "ts_us")


def as_served(run: Run, unit: str = "") -> Manifest:
    """Write surface=S.parquet: per impression of the students' span what it would have got.

    Nothing is played, and nothing written, where no arm of `transfer.arms` reads the store.
    Figures: share of the impressions by source, for every surface; the vectors computed.
    """
    config, window = run.config, window_of(run.config)
    readers = [arm.name for arm in arms_named(config.transfer.arms) if arm.served]
    span = days_between(window.students_begin, window.day_end)

    def build(folder: Path) -> Outcome:
        if not readers:
            return Outcome(rows=0, figures={"arms": []})
        history = play_span(run)
        rows, surfaces = 0, {}
        for surface in config.surfaces:
            shown = _shown(run, surface, span)
            surfaces[surface] = _write(folder / f"surface={surface}.parquet", history, shown)
            rows += len(shown)
        figures = {"arms": readers, "vectors": len(history), "shown_by_surface": surfaces}
        return Outcome(rows=rows, figures=figures)

    inputs: dict[str, str] = {}
    if readers:
        shown = partitions(run, "impressions", span)
        inputs |= partition_inputs(run, _days_played(run)) | {"epoch": epoch_in_force(run).id}
        inputs |= {str(p.folder.relative_to(run.lake())): p.manifest.fingerprint for p in shown}
        inputs["snapshot"] = epoch_in_force(run).fingerprint()
        for group in range(config.window.num_groups):
            name = f"timelines/{group}"
            inputs[name] = need_manifest(run.output("timelines", str(group))).fingerprint
    settings = (config.solaris, config.features, config.transfer.quantization, readers, window)
    return produce(
        run.output("as_served"),
        stage="as_served",
        inputs=inputs,
        settings=settings if readers else (),
        build=build,
    )


def play_span(run: Run) -> VectorHistory:
    """Every vector that a store would have held from `students_begin` to the end of the day."""
    window, solaris = window_of(run.config), run.config.solaris
    epoch = epoch_in_force(run)
    days = _days_played(run)
    requests = read_requests(run, days)
    codes = Codes(requests)
    chosen = choose_pairs(
        requests,
        codes,
        ranking_of(requests, codes, solaris),
        solaris,
        begin_us=window.students_begin,
        end_us=window.day_end,
    )
    pairs = pl.DataFrame(
        {"user_id": chosen.user_N, "ad_id": chosen.ad_N, "at_us": chosen.at_us_N},
        schema_overrides={"user_id": pl.Int64, "ad_id": pl.Int64, "at_us": pl.Int64},
    )
    if not len(pairs):
        raise DataError(f"no request from {days[0]} on offers a pair to compute; run ingest first")
    refuse_future(epoch, int(chosen.at_us_N.min()), "vectors")
    rows = vectors_of(run, epoch, pairs)
    written = Vectors(
        user_N=rows.user_N,
        ad_N=rows.ad_N,
        written_at_N=rows.at_us_N,
        score_N=rows.logits_NK[:, 0],
        z_Nd=rows.z_Nd,
    )
    return VectorHistory(written, span_generation(run, epoch, window.day_end), solaris.neighbours)


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


def _days_played(run: Run) -> tuple[str, ...]:
    """The students' span, and before it what the predictor learns from."""
    window = window_of(run.config)
    taught_us = int(run.config.solaris.ttl_hours * HOUR_US) + DAY_US
    return days_between(window.students_begin - taught_us, window.day_end)


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
    """Serve all impressions, some at a time; their number, and the share of each source."""
    count_S = np.zeros(len(SOURCES), dtype=np.int64)
    writer: pq.ParquetWriter | None = None
    for some in _chunks(shown):
        served = history.serve(*(some[name].to_numpy() for name in IDS[1:]))
        count_S += np.bincount(served.source_B, minlength=len(SOURCES))
        table = served_table(served)
        for place, name in enumerate(("impression_id", "ts_us")):
            table = table.add_column(place, name, some[name].to_arrow())
        if writer is None:
            writer = pq.ParquetWriter(path, table.schema, compression="zstd")
        writer.write_table(table)
    if writer is not None:
        writer.close()
    share_S = count_S / max(len(shown), 1)
    return {"count": len(shown)} | dict(zip(SOURCES, share_S.tolist(), strict=True))


def _chunks(shown: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """At least one chunk, so that a surface without impressions has its file too."""
    for begin in range(0, max(len(shown), 1), CHUNK):
        yield shown[begin : begin + CHUNK]


def span_generation(run: Run, epoch: Epoch, as_of_us: int) -> Generation:
    """How a store that holds the span's vectors reads them."""
    solaris = run.config.solaris
    return Generation(
        fingerprint="span",
        epoch=epoch.id,
        day=run.config.day,
        fm_cut_us=epoch.fm_cut_us,
        as_of_us=as_of_us,
        ttl_us=int(solaris.ttl_hours * HOUR_US),
        delay_us=int(solaris.delay_minutes * MINUTE_US),
        width=run.config.model.representation_dim,
        dtype=run.config.transfer.quantization,
        neighbours=solaris.neighbours,
    )
