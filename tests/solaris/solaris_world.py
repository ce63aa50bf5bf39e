"""A small lake of requests with recurring finalists, as ingest would have written it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

from data_contracts.schema import CANDIDATES
from pipeline.mixing.frames import write_frame
from pipeline.mixing.hashing import bucket_of
from pipeline.run.codec import from_dict, to_dict
from pipeline.run.config import RunConfig, with_overrides
from pipeline.run.manifest import Outcome, produce, write_json
from pipeline.run.paths import Run, run_folder
from pipeline.run.presets import preset
from pipeline.run.window import DAY_US, day_begin_us, day_of_us

DAY = "2026-11-29"
NUM_USERS, SLOTS, FINALISTS = 60, 30, 10


def make_run(home: Path, *, candidates: bool = True, **solaris: object) -> Run:
    """A run folder of the planted smoke preset, without any data."""
    config = preset(DAY, "smoke")
    config = with_overrides(config, {f"solaris.{k}": v for k, v in solaris.items()})
    if not candidates:
        tree = to_dict(config)
        tables = tree["source"]["tables"]
        tree["source"]["tables"] = [t for t in tables if t["table"] != "candidates"]
        config = from_dict(RunConfig, tree)
    folder = run_folder(config, home)
    folder.mkdir(parents=True)
    write_json(folder / "run.json", to_dict(config))
    return Run(folder=folder, config=config)


def finalists(config: RunConfig, day: str, seed: int = 0) -> pl.DataFrame:
    """Requests of one day: a user's finalists come from a pool of `SLOTS` ads of the user."""
    rng = np.random.default_rng(seed + day_begin_us(day) // DAY_US)
    count = 4 * NUM_USERS
    user = rng.integers(0, NUM_USERS, count)
    ts = np.sort(day_begin_us(day) + rng.integers(0, DAY_US, count))
    pool = np.stack([rng.permutation(SLOTS)[:FINALISTS] for _ in range(count)])
    ad = 1_000 + (user[:, None] * 7 + pool) % 200
    rank = np.tile(np.arange(FINALISTS, dtype=np.int16), (count, 1))
    frame = pl.DataFrame(
        {
            "request_id": np.repeat(
                np.arange(count) + 10_000 * (day_begin_us(day) // DAY_US), FINALISTS
            ),
            "ts": np.repeat(ts, FINALISTS),
            "surface": np.repeat(np.array(config.surfaces)[user % 3], FINALISTS),
            "user_id": np.repeat(user, FINALISTS),
            "ad_id": ad.reshape(-1),
            "rank": rank.reshape(-1),
            "score": -rank.reshape(-1).astype(np.float32),
            "shown": (rank.reshape(-1) < 2).astype(np.int8),
        }
    )
    return frame.with_columns(pl.col("ts").cast(pl.Datetime("us", "UTC")))


def fill_lake(run: Run, days: tuple[str, ...]) -> None:
    """Publish candidates and impressions partitions of the days."""
    for day in days:
        rows = finalists(run.config, day)
        publish_candidates(run, day, rows)
        for surface in run.config.surfaces:
            publish_impressions(run, day, surface, rows)


def publish_candidates(run: Run, day: str, rows: pl.DataFrame) -> None:
    """Publish one day's canonical candidates."""
    write = {b: rows.filter(_bucket(rows, run) == b) for b in range(run.config.window.num_buckets)}

    def build(folder: Path) -> Outcome:
        for bucket, part in write.items():
            write_frame(folder / f"bucket={bucket}.parquet", part, CANDIDATES)
        return Outcome(rows=len(rows))

    target = run.lake("canonical", "candidates", f"day={day}")
    produce(target, stage="ingest", inputs={}, settings=day, build=build)


def publish_impressions(run: Run, day: str, surface: str, rows: pl.DataFrame) -> None:
    """Publish one day's canonical impressions of one surface: the shown finalists."""
    shown = rows.filter((pl.col("shown") == 1) & (pl.col("surface") == surface))
    shown = shown.rename({"rank": "position"}).with_columns(
        (pl.col("request_id") * 10 + pl.col("position")).alias("impression_id"),
        (pl.col("ad_id") % 8).alias("category_id"),
        (pl.col("ad_id") % 50).alias("advertiser_id"),
        pl.col("ad_id").alias("campaign_id"),
        pl.lit("click").alias("objective"),
        pl.lit(0, pl.Int8).alias("click"),
        (pl.col("user_id") % 5).alias("user_cluster"),
        pl.lit(0, pl.Int64).alias("request_attribute"),
        *(pl.lit(0.5, pl.Float32).alias(f"interest_{i}") for i in range(4)),
        pl.lit(0.5, pl.Float32).alias("purchase_intent"),
    )

    def build(folder: Path) -> Outcome:
        for bucket in range(run.config.window.num_buckets):
            part = shown.filter(_bucket(shown, run) == bucket)
            write_frame(folder / f"bucket={bucket}.parquet", part)
        return Outcome(rows=len(shown))

    target = run.lake("canonical", "impressions", f"day={day}", f"surface={surface}")
    produce(target, stage="ingest", inputs={}, settings=day, build=build)


def days_up_to(day: str, count: int) -> tuple[str, ...]:
    """The `count` days that end with `day`."""
    last = day_begin_us(day)
    return tuple(day_of_us(last - back * DAY_US) for back in reversed(range(count)))


def _bucket(rows: pl.DataFrame, run: Run) -> pl.Series:
    return pl.Series(bucket_of(rows["user_id"].to_numpy(), run.config.window.num_buckets))
