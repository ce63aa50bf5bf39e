"""Rows of a selection of the mix: its pointers, what each costs, and the features they point at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from model.config import FeatureSet
from pipeline.mixing.balance import assign_buckets, window_parts
from pipeline.mixing.canonical import bucket_file, read_rows, window_impressions
from pipeline.mixing.frames import read_frames
from pipeline.mixing.mix import hist_file
from pipeline.mixing.packing import dense_values, feature_columns, sparse_ids
from pipeline.run.errors import require
from pipeline.run.paths import Run

_MOMENT_US: Final = 300_000_000  # five minutes: how finely the ranks' common pace is known


@dataclass(frozen=True, kw_only=True)
class Span:
    """A selection within [begin_us, end_us) of the label time; None where it is not bounded."""

    selection: str
    begin_us: int | None = None
    end_us: int | None = None

    def within(self) -> pl.Expr:
        """Whether a row lies in the span."""
        label = pl.col("label_us")
        after = label >= self.begin_us if self.begin_us is not None else pl.lit(True)
        return after & (label < self.end_us if self.end_us is not None else pl.lit(True))


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """Which of how many ranks reads."""

    rank: int = 0
    world_size: int = 1

    def check(self, num_buckets: int) -> None:
        """`ConfigError` unless every rank gets at least one of the buckets."""
        require(self.world_size >= 1, "world_size", "at least 1", self.world_size, "use 1")
        few = f"raise window.num_buckets, which is {num_buckets}, or use fewer ranks"
        fits = self.world_size <= num_buckets
        require(fits, "world_size", "at most window.num_buckets", self.world_size, few)
        inside = 0 <= self.rank < self.world_size
        require(inside, "rank", f"in [0, {self.world_size})", self.rank, "count ranks from 0")


@dataclass(frozen=True, kw_only=True)
class Share:
    """A rank's part of a selection; with one rank `total_rows` and `parts_W` are not needed.

    `total_rows` and `parts_W` (see `window_parts`) are of all ranks together.
    """

    buckets: tuple[int, ...]
    total_rows: int | None = None
    parts_W: np.ndarray | None = None


def share_of(run: Run, span: Span, features: FeatureSet, *, ranks: Ranks, batch_size: int) -> Share:
    """What a rank reads of a selection. Pointers of all buckets are looked through one by one."""
    buckets = range(run.config.window.num_buckets)
    ranks.check(len(buckets))
    if ranks.world_size == 1:
        return Share(buckets=tuple(buckets))
    moments = [_moments(run, span, features, bucket) for bucket in buckets]
    cost_B = np.array([m["cost"].sum() for m in moments])
    mine = np.flatnonzero(assign_buckets(cost_B, ranks.world_size) == ranks.rank)
    pace = pl.concat(moments).group_by("moment").sum().sort("moment")
    rows_T, cost_T = pace["rows"].to_numpy(), pace["cost"].to_numpy()
    return Share(
        buckets=tuple(mine.tolist()),
        total_rows=int(rows_T.sum()),
        parts_W=window_parts(rows_T, cost_T, batch_size),
    )


def _moments(run: Run, span: Span, features: FeatureSet, bucket: int) -> pl.DataFrame:
    """Rows and cost of a bucket by time: moment, rows, cost, all int64."""
    path = bucket_file(run.output("mix") / span.selection, bucket)
    rows = pl.scan_parquet(path, glob=False).filter(span.within())
    moment = (pl.col("label_us") // _MOMENT_US).alias("moment")
    counts = (pl.len().cast(pl.Int64).alias("rows"), _cost(features).sum().alias("cost"))
    return rows.group_by(moment).agg(*counts).collect(engine="streaming")


def picked_rows(run: Run, span: Span, buckets: Sequence[int]) -> pl.DataFrame:
    """The selection's rows within the span, bucket after bucket, with their bucket."""
    frames = []
    for bucket in buckets:
        rows = read_frames([bucket_file(run.output("mix") / span.selection, bucket)]).drop("day")
        if span.begin_us is not None or span.end_us is not None:
            rows = rows.filter(span.within())
        frames.append(rows.with_columns(pl.lit(bucket, dtype=pl.Int32).alias("bucket")))
    return pl.concat(frames)


def feature_values(
    run: Run, features: FeatureSet, picked: pl.DataFrame
) -> tuple[np.ndarray, np.ndarray]:
    """Sparse ids and dense values of picked rows, read by their pointers bucket by bucket."""
    parts = window_impressions(run)
    counts = [c for m in features.matches for c in m.columns]
    ids_NF = np.empty((len(picked), len(features.sparse)), dtype=np.int32)
    dense_NC = np.empty((len(picked), len(features.dense_columns)), dtype=np.float32)
    buckets, begins = np.unique(picked["bucket"].to_numpy(), return_index=True)
    ends = np.append(begins, len(picked))[1:]
    for bucket, begin, end in zip(buckets, begins, ends, strict=True):
        mine = slice(begin, end)
        g = picked["g"][mine].to_numpy()
        rows = read_rows(parts, int(bucket), feature_columns(features), g)
        rows = rows.with_columns(picked["surface"][mine])
        if counts:
            rows = rows.with_columns(read_frames([hist_file(run, int(bucket))], counts)[g])
        ids_NF[mine] = sparse_ids(features, rows)
        dense_NC[mine] = dense_values(features, rows)
    return ids_NF, dense_NC


def row_costs(features: FeatureSet, picked: pl.DataFrame) -> np.ndarray:
    """One and the events that each row reads, int64."""
    return picked.select(_cost(features).alias("cost"))["cost"].to_numpy()


def _cost(features: FeatureSet) -> pl.Expr:
    cost = pl.col("label_us") * 0 + 1
    for event in features.events:
        visible = pl.col(f"end_{event.name}") - pl.col(f"start_{event.name}")
        cost = cost + visible.clip(0, event.max_len)
    return cost
