"""Requests and their finalists, in event time: what Solaris predicts, precomputes and replays.

Suffixes: Q requests, F finalists (rows of all requests, concatenated).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from pipeline.loopfm.arms import readers_of_store
from pipeline.mixing.canonical import partitions
from pipeline.mixing.hashing import bucket_of
from pipeline.run.errors import DataError
from pipeline.run.paths import Run
from pipeline.run.window import DAY_US, day_begin_us, day_of_us

Int64s = npt.NDArray[np.int64]
COLUMNS = ("request_id", "user_id", "surface", "ts", "ad_id")
KEYS = ("ts_us", "request_id", "user_id")


@dataclass(frozen=True, kw_only=True)
class Requests:
    """Requests in time order; request q owns finalists `first_Q[q] : first_Q[q + 1]`, best first.

    `first_Q` has one entry more than there are requests. `ts_us_Q` in microseconds, `surface_Q`
    as its name; `rank_F` starts at 0; `score_F` is how far the delivery score lies below the best
    of the request, 0 for all where the source has none.
    """

    request_Q: Int64s
    user_Q: Int64s
    ts_us_Q: Int64s
    surface_Q: npt.NDArray[np.object_]
    first_Q: Int64s
    ad_F: Int64s
    rank_F: Int64s
    score_F: npt.NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.request_Q)

    @property
    def request_of_F(self) -> Int64s:
        """Index of the request that owns each finalist."""
        return np.repeat(np.arange(len(self)), np.diff(self.first_Q))

    def take(self, kept_Q: npt.NDArray[np.bool_]) -> Requests:
        """The chosen requests."""
        kept_F = np.repeat(kept_Q, np.diff(self.first_Q))
        size_Q = np.diff(self.first_Q)[kept_Q]
        return Requests(
            request_Q=self.request_Q[kept_Q],
            user_Q=self.user_Q[kept_Q],
            ts_us_Q=self.ts_us_Q[kept_Q],
            surface_Q=self.surface_Q[kept_Q],
            first_Q=np.concatenate([[0], np.cumsum(size_Q)]).astype(np.int64),
            ad_F=self.ad_F[kept_F],
            rank_F=self.rank_F[kept_F],
            score_F=self.score_F[kept_F],
        )

    def since(self, begin_us: int) -> Requests:
        """The requests at or after a time."""
        return self.take(self.ts_us_Q >= begin_us)


def read_requests(run: Run, days: tuple[str, ...], parts: int = 1) -> Requests:
    """Requests of the days that the lake holds, with their finalists; of one in `parts` users.

    Without a candidates table a request's finalists are its impressions by position. The run's
    own day must be there: `DataError` otherwise.
    """
    found = partitions(run, source_table(run), days)
    if run.config.day not in {part.day for part in found}:
        raise DataError(
            f"{source_table(run)} of {run.config.day} are not in the lake; run ingest first"
        )
    rows = pl.concat([_read(part.folder) for part in found])
    if parts > 1:
        rows = rows.filter(pl.Series(bucket_of(rows["user_id"].to_numpy(), parts) == 0))
    return group_requests(rows)


def source_table(run: Run) -> str:
    """Where finalists come from: "candidates" when the source has them, else "impressions"."""
    tables = {table.table for table in run.config.source.tables}
    return "candidates" if "candidates" in tables else "impressions"


def partition_inputs(run: Run, days: tuple[str, ...]) -> dict[str, str]:
    """Fingerprints of the finalists' partitions, by path in the lake."""
    return {
        str(part.folder.relative_to(run.lake())): part.manifest.fingerprint
        for part in partitions(run, source_table(run), days)
    }


def solaris_days(run: Run) -> tuple[str, ...]:
    """The days that Solaris plays: the run's day, and `warmup_days` before it.

    Where students read the store they are the students' span at least.
    """
    last, days = day_begin_us(run.config.day), run.config.solaris.warmup_days
    if readers_of_store(run.config):
        days = max(days, run.config.window.student_days - 1)
    span = range(days, -1, -1)
    return tuple(day_of_us(last - back * DAY_US) for back in span)


def taught_days(run: Run) -> tuple[str, ...]:
    """The days that are read: those played, and before them what predictions learn from.

    That is a day of offers, and after it the life of their vectors.
    """
    played = solaris_days(run)
    lessons = math.ceil(1 + run.config.solaris.ttl_hours / 24)
    first = day_begin_us(played[0])
    return (*(day_of_us(first - back * DAY_US) for back in range(lessons, 0, -1)), *played)


def group_requests(rows: pl.DataFrame) -> Requests:
    """Requests from finalist rows (`COLUMNS`, `rank`, `score`); a request is (time, id, user).

    Rows may come in any order; duplicates of an ad in a request keep the best rank.
    """
    rows = rows.sort(*KEYS, "rank", "ad_id").unique(
        [*KEYS, "ad_id"], keep="first", maintain_order=True
    )
    keys = [rows[name].to_numpy() for name in KEYS]
    new_F = np.ones(len(rows), dtype=bool)
    new_F[1:] = np.any([key[1:] != key[:-1] for key in keys], axis=0)
    begin_Q = np.flatnonzero(new_F).astype(np.int64)
    first_Q = np.append(begin_Q, len(rows)).astype(np.int64)
    size_Q = np.diff(first_Q)
    rank_F = np.arange(len(rows)) - np.repeat(begin_Q, size_Q)
    score_F = rows["score"].to_numpy()
    best_Q = np.maximum.reduceat(score_F, begin_Q) if len(rows) else score_F
    return Requests(
        request_Q=rows["request_id"].to_numpy()[begin_Q],
        user_Q=rows["user_id"].to_numpy()[begin_Q],
        ts_us_Q=rows["ts_us"].to_numpy()[begin_Q],
        surface_Q=rows["surface"].to_numpy()[begin_Q].astype(object),
        first_Q=first_Q,
        ad_F=rows["ad_id"].to_numpy(),
        rank_F=rank_F.astype(np.int64),
        score_F=np.nan_to_num(score_F - np.repeat(best_Q, size_Q)).astype(np.float32),
    )


def _read(folder: Path) -> pl.DataFrame:
    files = sorted(folder.glob("*.parquet"))
    columns = pl.read_parquet_schema(files[0])
    rank = "rank" if "rank" in columns else "position"
    score = pl.col("score") if "score" in columns else pl.lit(0.0)
    return (
        pl.scan_parquet(files, glob=False)
        .select(
            pl.col("request_id", "user_id", "ad_id"),
            pl.col("surface").cast(pl.String),
            pl.col("ts").dt.epoch("us").alias("ts_us"),
            pl.col(rank).cast(pl.Int64).alias("rank"),
            score.cast(pl.Float32).alias("score"),
        )
        .collect()
    )
