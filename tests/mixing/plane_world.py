"""A toy source for tests of the data plane: a few hundred random rows a day, written as landed."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl

from model.config import (
    DenseFeature,
    EmbeddingTable,
    EventAttribute,
    EventType,
    FeatureSet,
    MatchCount,
    Objective,
    SparseFeature,
)
from pipeline.mixing.ingest import ingest
from pipeline.mixing.labels import labels
from pipeline.mixing.mix import mix
from pipeline.mixing.timeline import timelines
from pipeline.run.codec import to_dict
from pipeline.run.config import MixConfig, RunConfig, SourceConfig, WindowConfig
from pipeline.run.paths import Run, run_folder
from pipeline.run.presets import landed
from pipeline.run.window import DAY_US, HOUR_US, day_begin_us, window_of

LAST = "2026-03-06"
SURFACES = ("feed", "reels")
FEATURES = FeatureSet(
    tables=(
        EmbeddingTable(name="user", buckets=500),
        EmbeddingTable(name="ad", buckets=200),
        EmbeddingTable(name="category", buckets=64),
        EmbeddingTable(name="surface", buckets=64),
        EmbeddingTable(name="color", buckets=64),
    ),
    sparse=(
        SparseFeature(name="user_id", table="user", scope="user", central_only=True),
        SparseFeature(name="color", table="color", scope="ad"),
        SparseFeature(name="ad_id", table="ad", scope="ad"),
        SparseFeature(name="category_id", table="category", scope="ad"),
        SparseFeature(name="surface", table="surface", scope="request"),
    ),
    dense=(
        DenseFeature(name="mood", scope="user", central_only=True),
        DenseFeature(name="price", scope="ad", transform="log1p"),
    ),
    events=(
        EventType(
            name="shown",
            source="impressions",
            attributes=(
                EventAttribute(column="ad_id", table="ad"),
                EventAttribute(column="surface", table="surface"),
                EventAttribute(column="action", table="surface"),
            ),
            max_len=5,
        ),
        EventType(
            name="organic",
            source="engagements",
            attributes=(EventAttribute(column="category_id", table="category"),),
            max_len=3,
            availability_delay_s=60,
        ),
    ),
    matches=(
        MatchCount(event="shown", key="ad_id"),
        MatchCount(event="organic", key="category_id"),
    ),
)
OBJECTIVES = (Objective(name="click"), Objective(name="conversion", window_hours=24))


def toy_config(day: str = LAST, **changes: object) -> RunConfig:
    config = RunConfig(
        day=day,
        size="smoke",
        source=SourceConfig(name="toy", tables=landed("impressions", "conversions", "engagements")),
        surfaces=SURFACES,
        objectives=OBJECTIVES,
        features=FEATURES,
        window=WindowConfig(bootstrap_days=3, student_days=1, holdout_hours=12, retention_days=10),
        mix=MixConfig(),
    )
    return replace(config, **changes)  # type: ignore[arg-type]


def toy_run(home: Path, config: RunConfig) -> Run:
    folder = run_folder(config, home)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text(json.dumps(to_dict(config)))
    return Run(folder=folder, config=config)


def impressions(day: str, count: int, seed: int = 0) -> pl.DataFrame:
    rng = np.random.default_rng([seed, day_begin_us(day) // DAY_US])
    ts = np.sort(rng.integers(0, DAY_US, count)) + day_begin_us(day)
    ad = rng.integers(0, 30, count)
    return pl.DataFrame(
        {
            "impression_id": np.arange(count) + day_begin_us(day) // DAY_US * 100_000,
            "request_id": rng.integers(0, count, count),
            "ts": pl.Series(ts).cast(pl.Datetime("us", "UTC")),
            "surface": rng.choice(SURFACES, count, p=[0.7, 0.3]),
            "user_id": rng.integers(0, 40, count),
            "ad_id": ad,
            "category_id": ad % 5,
            "color": np.array(["red", "blue", "7"])[ad % 3],
            "mood": rng.normal(size=count),
            "price": rng.exponential(size=count),
            "click": (rng.random(count) < 0.15).astype(np.int8),
        }
    )


def conversions(shown: pl.DataFrame, seed: int = 0) -> pl.DataFrame:
    rng = np.random.default_rng([seed, 7])
    some = shown.filter(pl.Series(rng.random(len(shown)) < 0.2))
    delay = rng.exponential(10 * HOUR_US, len(some)).astype(np.int64)
    return some.select(
        "impression_id",
        "user_id",
        pl.lit("conversion").alias("kind"),
        (pl.col("ts").dt.epoch("us") + pl.Series(delay)).cast(pl.Datetime("us", "UTC")).alias("ts"),
        pl.lit(1.0).alias("value"),
    )


def engagements(day: str, count: int, seed: int = 0) -> pl.DataFrame:
    rng = np.random.default_rng([seed, 3, day_begin_us(day) // DAY_US])
    return pl.DataFrame(
        {
            "user_id": rng.integers(0, 40, count),
            "ts": pl.Series(np.sort(rng.integers(0, DAY_US, count)) + day_begin_us(day)).cast(
                pl.Datetime("us", "UTC")
            ),
            "kind": "view",
            "item_id": rng.integers(0, 50, count),
            "category_id": rng.integers(0, 5, count),
            "surface": "feed",
        }
    )


def land_frame(run: Run, table: str, day: str, frame: pl.DataFrame, name: str = "part-0") -> Path:
    folder = run.landing(table, f"day={day}")
    folder.mkdir(parents=True, exist_ok=True)
    frame.write_parquet(folder / f"{name}.parquet")
    return folder / f"{name}.parquet"


def land_days(run: Run, days: tuple[str, ...], count: int = 300, seed: int = 0) -> None:
    shown = [impressions(day, count, seed) for day in days]
    bought = conversions(pl.concat(shown), seed).with_columns(
        pl.col("ts").dt.strftime("%Y-%m-%d").alias("day")
    )
    for day, frame in zip(days, shown, strict=True):
        land_frame(run, "impressions", day, frame)
        arrived = bought.filter(pl.col("day") == day).drop("day").sort("ts")
        land_frame(run, "conversions", day, arrived)
        land_frame(run, "engagements", day, engagements(day, count, seed))


def shifted(day: str, days: int) -> str:
    return (dt.date.fromisoformat(day) + dt.timedelta(days=days)).isoformat()


def ingest_all(run: Run) -> dict[str, str]:
    return {u: ingest(run, u).fingerprint for u in (*run.config.surfaces, "rest")}


def run_plane(run: Run) -> dict[str, str]:
    """Every stage of the plane; returns fingerprints by stage and unit."""
    done = {f"ingest/{u}": f for u, f in ingest_all(run).items()}
    done["labels"] = labels(run, "").fingerprint
    for group in range(run.config.window.num_groups):
        done[f"timelines/{group}"] = timelines(run, str(group)).fingerprint
    done["mix"] = mix(run, "").fingerprint
    return done


def landed_run(home: Path, config: RunConfig | None = None, count: int = 300) -> Run:
    run = toy_run(home, config or toy_config())
    land_days(run, window_of(run.config).days, count)
    return run
