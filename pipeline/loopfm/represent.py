"""Stage `represent`: the epoch's snapshot reads every logged impression once.

One forward pass gives both what LoopFM stores (the code) and what distillation needs (the
logits), as arXiv 2605.29280 has it. A day that is in the lake already is not computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from model.batch import Batch
from model.foundation import FoundationModel
from model.snapshot import load_snapshot
from pipeline.loopfm.epoch import Epoch, epoch_in_force
from pipeline.loopfm.lake import INDEX, Representations, day_folder, write_bucket
from pipeline.loopfm.nibbles import Floats, codebook
from pipeline.loopfm.scoring import score
from pipeline.loopfm.sequence import Int64s
from pipeline.mixing.canonical import bucket_file, partitions
from pipeline.mixing.loader import Loader
from pipeline.run.manifest import (
    Manifest,
    Outcome,
    fingerprint_of,
    produce,
    read_manifest,
    write_json,
)
from pipeline.run.paths import Run
from pipeline.run.window import DAY_US, day_begin_us, day_of_us, days_between, window_of

SCORE_BATCH = 2_048


@dataclass(frozen=True, kw_only=True)
class _Source:
    """What all days are scored with: made once, when the first missing day is met."""

    loader: Loader
    model: FoundationModel


def represent(run: Run, unit: str) -> Manifest:
    """Bring the lake's representations of the epoch up to date and write index.json.

    The index names every day of the epoch, up to the run's, that is in the lake: students read
    histories that began before their own span.
    """
    epoch = epoch_in_force(run)
    snapshot = epoch.fingerprint()
    window = window_of(run.config)
    source = cache(lambda: _source(run, epoch))
    days = days_between(window.students_begin, window.day_end)
    for day, data in _data_prints(run, days).items():
        inputs = {"snapshot": snapshot, "data": data}
        _represent_day(run, epoch, day, inputs, source)
    oldest = window.day_end - run.config.window.retention_days * DAY_US
    return _write_index(run, epoch, days_between(max(oldest, epoch.fm_cut_us), window.day_end))


def _represent_day(
    run: Run, epoch: Epoch, day: str, inputs: dict[str, str], source: Callable[[], _Source]
) -> Manifest:
    names = [o.name for o in run.config.objectives]

    def build(folder: Path) -> Outcome:
        rows, bucket_N = _score_day(run, source(), day)
        values_C = _codebook(run, rows)
        for bucket in range(run.config.window.num_buckets):
            mine = rows.take(bucket_N == bucket)
            write_bucket(bucket_file(folder, bucket), mine, epoch, names, values_C)
        staleness = [int(t) - epoch.fm_cut_us for t in rows.ts_us_N[[0, -1]]] if len(rows) else []
        return Outcome(rows=len(rows), figures={"staleness_us": staleness})

    return produce(
        day_folder(run, epoch.id, day),
        stage="represent",
        unit=day,
        inputs=inputs,
        settings=(_stored_as(run), names, run.config.window.num_buckets),
        build=build,
    )


def _stored_as(run: Run) -> str:
    """Byte format, or the four-bit one."""
    four_bit = run.config.transfer.lake_format
    return run.config.transfer.quantization if four_bit == "same" else four_bit


def _codebook(run: Run, rows: Representations) -> Floats | None:
    """What a day's four-bit codes stand for; None where they lie in bytes or float32."""
    kind = run.config.transfer.lake_format
    return None if kind == "same" else codebook(rows.z_Nd.astype(np.float32), kind)


def _data_prints(run: Run, days: tuple[str, ...]) -> dict[str, str]:
    """Per day one fingerprint of what its histories are made of: the events of the retention
    span that ends with it.
    """
    keep_us = run.config.window.retention_days * DAY_US
    span = days_between(day_begin_us(days[0]) - keep_us, day_begin_us(days[-1]) + DAY_US)
    sources = {"impressions", *(event.source for event in run.config.features.events)}
    prints = {
        (part.day, str(part.folder.relative_to(run.lake()))): part.manifest.fingerprint
        for table in sorted(sources)
        for part in partitions(run, table, span)
    }
    oldest = {day: day_of_us(day_begin_us(day) - keep_us) for day in days}
    return {
        day: fingerprint_of(
            {folder: p for (of, folder), p in prints.items() if oldest[day] <= of <= day}
        )
        for day in days
    }


def _source(run: Run, epoch: Epoch) -> _Source:
    loader = Loader(run, "log", batch_size=SCORE_BATCH, order="time")
    return _Source(loader=loader, model=load_snapshot(epoch.folder))


def _score_day(run: Run, source: _Source, day: str) -> tuple[Representations, Int64s]:
    """Codes and logits of a day's impressions, and the bucket of each.

    A day's batches hold that day alone: its bytes do not depend on which days are missing.
    """
    columns = source.loader.columns
    begin_us = day_begin_us(day)
    first, end = np.searchsorted(columns["ts_us"], [begin_us, begin_us + DAY_US]).tolist()
    as_stored = run.config.transfer.lake_format == "same"
    scores = score(
        source.model,
        _batches(source.loader, first, end),
        num_rows=end - first,
        width=run.config.model.representation_dim,
        num_objectives=len(run.config.objectives),
        quantization=run.config.transfer.quantization if as_stored else "float32",
        title=f"represent {day}",
    )
    rows = Representations(
        impression_N=columns["impression_id"][first:end],
        user_N=columns["user_id"][first:end],
        ad_N=columns["ad_id"][first:end],
        ts_us_N=columns["ts_us"][first:end],
        z_Nd=scores.z_Nd,
        logits_NK=scores.logits_NK,
    )
    return rows, columns["bucket"][first:end]


def _batches(loader: Loader, first: int, end: int) -> Iterator[Batch]:
    for begin in range(first, end, SCORE_BATCH):
        yield loader.rows(begin, min(begin + SCORE_BATCH, end))


def _write_index(run: Run, epoch: Epoch, days: tuple[str, ...]) -> Manifest:
    manifests = {
        day: read_manifest(day_folder(run, epoch.id, day), missing_ok=True) for day in days
    }
    known = {day: manifest for day, manifest in manifests.items() if manifest}
    prints = {day: manifest.fingerprint for day, manifest in known.items()}

    def build(folder: Path) -> Outcome:
        index = {"epoch": epoch.id, "fm_cut_us": epoch.fm_cut_us, "days": prints}
        write_json(folder / INDEX, index)
        rows = {day: manifest.rows for day, manifest in known.items()}
        return Outcome(rows=sum(rows.values()), figures={"rows": rows, "epoch": epoch.id})

    return produce(
        run.output("represent"),
        stage="represent",
        inputs=prints,
        settings=(epoch.id, epoch.fm_cut_us),
        build=build,
    )
