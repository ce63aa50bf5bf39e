"""The features of a pair that was not shown: what was last known of its user and of its ad.

User and request features come from the user's latest impression at or before the time, ad
features from the ad's latest impression before it. Suffixes: N pairs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import polars as pl

from data_contracts.schema import IMPRESSION_IDS
from pipeline.loopfm.sequence import index_by_owner
from pipeline.mixing.canonical import bucket_file, partitions
from pipeline.run.errors import DataError
from pipeline.run.paths import Run
from pipeline.run.window import day_begin_us, window_of
from pipeline.solaris.store import Int64s

AD_COLUMNS = tuple(name for name in IMPRESSION_IDS if name != "user_id")
NOT_SEEN = -1


@dataclass(frozen=True, kw_only=True)
class PairRows:
    """`frame`: one row per known pair, in the pairs' order, ready for the loader's assembler.

    `kept_N`: which pairs those are; the others lack a user or an ad that was ever seen.
    """

    frame: pl.DataFrame
    kept_N: np.ndarray
    unknown_users: int
    unknown_ads: int


def pair_rows(run: Run, user_N: Int64s, ad_N: Int64s, at_us_N: Int64s) -> PairRows:
    """Features of pairs as of their times."""
    seen_users = _impressions(run, ["user_id", *_columns(run, ("user", "request"))], user_N)
    seen_ads = _impressions(run, [*AD_COLUMNS, *_columns(run, ("ad",))])
    user_row_N = latest(seen_users, "user_id", user_N, at_us_N + 1)
    ad_row_N = latest(seen_ads, "ad_id", ad_N, at_us_N)
    kept_N = (user_row_N != NOT_SEEN) & (ad_row_N != NOT_SEEN)
    # A feature is of one scope, but an id such as category_id may be declared under both.
    of_ad = seen_ads[ad_row_N[kept_N]].drop("ts_us", "surface")
    of_user = seen_users[user_row_N[kept_N]].drop("ts_us")
    of_user = of_user.drop([name for name in of_user.columns if name in of_ad.columns])
    frame = pl.concat([of_user, of_ad], how="horizontal").with_columns(
        pl.Series("ts_us", at_us_N[kept_N])
    )
    return PairRows(
        frame=frame,
        kept_N=kept_N,
        unknown_users=int((user_row_N == NOT_SEEN).sum()),
        unknown_ads=int(((user_row_N != NOT_SEEN) & (ad_row_N == NOT_SEEN)).sum()),
    )


def latest(seen: pl.DataFrame, owner: str, id_N: Int64s, before_us_N: Int64s) -> Int64s:
    """Row of each id's last appearance before a time, `NOT_SEEN` where there is none."""
    index = index_by_owner(seen[owner].to_numpy(), seen["ts_us"].to_numpy())
    end_N = index.ends(id_N, before_us_N)
    found_N = end_N > index.begins(id_N)
    row_N = np.full(len(id_N), NOT_SEEN)
    row_N[found_N] = index.order_N[end_N[found_N] - 1]
    return row_N


def _columns(run: Run, scopes: Iterable[str]) -> list[str]:
    features = run.config.features
    names = [f.name for f in features.sparse if f.scope in scopes]
    names += [f.name for f in features.dense if f.scope in scopes]
    return [n for n in dict.fromkeys(names) if n not in {*IMPRESSION_IDS, "surface"}]


def _impressions(run: Run, columns: list[str], users: Int64s | None = None) -> pl.DataFrame:
    """Columns, `ts_us` and `surface` (index) of the window's impressions, of the users alone."""
    last = day_begin_us(run.config.day)
    days = [day for day in window_of(run.config).days if day_begin_us(day) <= last]
    parts = partitions(run, "impressions", days)
    if not parts:
        raise DataError(f"no impressions up to {run.config.day} in the lake; run ingest first")
    buckets = range(run.config.window.num_buckets)
    files = [bucket_file(part.folder, b) for part in parts for b in buckets]
    names = run.config.surfaces
    rows = pl.scan_parquet(files, glob=False).select(
        *columns,
        pl.col("ts").dt.epoch("us").alias("ts_us"),
        pl.col("surface")
        .cast(pl.String)
        .replace_strict(names, range(len(names)), return_dtype=pl.Int64),
    )
    if users is not None:
        wanted = pl.LazyFrame({"user_id": np.unique(users)})
        rows = rows.join(wanted, on="user_id", how="semi", maintain_order="left")
    return rows.collect()
