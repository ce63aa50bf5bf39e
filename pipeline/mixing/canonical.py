"""Canonical partitions in the lake: where they lie, and the row order that everything shares.

Within a bucket the window's impressions are concatenated by (day, surface in config order, row
in file); `g` is a row's place in that order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import polars as pl

from pipeline.mixing.frames import read_frames
from pipeline.run.errors import DataError
from pipeline.run.manifest import Manifest, read_manifest
from pipeline.run.paths import Run
from pipeline.run.window import window_of

REST = "rest"


def partition_folder(run: Run, table: str, day: str, surface: str = "") -> Path:
    """Folder of one canonical partition; impressions are split by surface too."""
    parts = [f"surface={surface}"] if table == "impressions" else []
    return run.lake("canonical", table, f"day={day}", *parts)


def bucket_file(folder: Path, bucket: int) -> Path:
    """The Parquet file of a bucket in a published folder."""
    return folder / f"bucket={bucket}.parquet"


@dataclass(frozen=True, kw_only=True)
class Partition:
    """One published canonical partition; `surface` is an index into config.surfaces."""

    folder: Path
    day: str
    surface: int
    manifest: Manifest

    @cached_property
    def bucket_rows(self) -> tuple[int, ...]:
        """Rows per bucket."""
        return tuple(self.manifest.read_figures()["bucket_rows"])

    def file_sha256(self, bucket: int) -> str:
        """SHA-256 of a bucket's file."""
        name = bucket_file(Path(), bucket).name
        return next(f.sha256 for f in self.manifest.files if f.path == name)


def partitions(run: Run, table: str, days: Sequence[str]) -> list[Partition]:
    """The published partitions of a table over `days`, in canonical order; absent ones skipped."""
    surfaces = run.config.surfaces if table == "impressions" else ("",)
    found = []
    for day in days:
        for index, surface in enumerate(surfaces):
            folder = partition_folder(run, table, day, surface)
            manifest = read_manifest(folder, missing_ok=True)
            if manifest is not None:
                found.append(Partition(folder=folder, day=day, surface=index, manifest=manifest))
    return found


def window_impressions(run: Run) -> list[Partition]:
    """All impression partitions of the run's window; `DataError` when one is missing."""
    days = window_of(run.config).days
    found = partitions(run, "impressions", days)
    if len(found) != len(days) * len(run.config.surfaces):
        have = {(p.day, p.surface) for p in found}
        day, surface = next(
            (d, s) for d in days for i, s in enumerate(run.config.surfaces) if (d, i) not in have
        )
        raise DataError(
            f"impressions of {day} on {surface} were not ingested; run: "
            f"python -m pipeline ingest --run {run.folder} --unit {surface}"
        )
    return found


def read_bucket(parts: Sequence[Partition], bucket: int, columns: Sequence[str]) -> pl.DataFrame:
    """Columns of one bucket over partitions, concatenated in their order."""
    return read_frames(bucket_files(parts, bucket), columns)


def bucket_files(parts: Sequence[Partition], bucket: int) -> list[Path]:
    """The files of one bucket that have rows, in the partitions' order; one when none has."""
    filled = [p for p in parts if p.bucket_rows[bucket]] or list(parts[:1])
    if not filled:
        raise DataError("no canonical partition to read; run the ingest stage first")
    return [bucket_file(p.folder, bucket) for p in filled]


def surface_column(parts: Sequence[Partition], bucket: int) -> np.ndarray:
    """Surface index of every row of `read_bucket`, int16."""
    counts = [p.bucket_rows[bucket] for p in parts]
    return np.repeat(np.array([p.surface for p in parts], dtype=np.int16), counts)


def day_column(parts: Sequence[Partition], bucket: int, days: Sequence[str]) -> np.ndarray:
    """Place in `days` of every row's day of `read_bucket`, int16."""
    counts = [p.bucket_rows[bucket] for p in parts]
    return np.repeat(np.array([days.index(p.day) for p in parts], dtype=np.int16), counts)


def read_rows(
    parts: Sequence[Partition], bucket: int, columns: Sequence[str], g: np.ndarray
) -> pl.DataFrame:
    """Columns of the rows `g` of a bucket, in the order of `g`; reads only their files."""
    ends = np.cumsum([p.bucket_rows[bucket] for p in parts])
    owner = np.searchsorted(ends, g, side="right")
    used = np.unique(owner)
    chosen = [parts[i] for i in used]
    if not chosen:
        return read_bucket(parts[:1], bucket, columns).clear()
    frame = read_bucket(chosen, bucket, columns)
    begins = np.concatenate([[0], ends[:-1]])
    kept = np.array([parts[i].bucket_rows[bucket] for i in used])
    shift = np.concatenate([[0], np.cumsum(kept)[:-1]]) - begins[used]
    return frame[g + shift[np.searchsorted(used, owner)]]
