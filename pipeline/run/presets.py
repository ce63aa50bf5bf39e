"""Complete run configs: a size dial, and what each known source offers.

`preset(day, size, source)` is the one entry. A source is a name (planted, openbandit, movielens,
tafeng) or the path of a TOML file that describes one's own logs (docs/your-own-logs.md).
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from model.config import (
    ConfigError,
    DenseFeature,
    EmbeddingTable,
    EventAttribute,
    EventType,
    FeatureSet,
    MatchCount,
    ModelConfig,
    Objective,
    SparseFeature,
)
from pipeline.run.codec import from_dict
from pipeline.run.config import (
    EvaluationConfig,
    MixConfig,
    RunConfig,
    SolarisConfig,
    SourceConfig,
    TableMapping,
    TrainConfig,
    WindowConfig,
)
from pipeline.run.planted import PLANTED_SURFACES as PLANTED_SURFACES
from pipeline.run.planted import PlantedConfig

SIZES = ("smoke", "small", "base")


@dataclass(frozen=True, kw_only=True)
class SourceSpec:
    """What a source brings to a config: its tables, surfaces, objectives, features and window."""

    source: SourceConfig
    surfaces: tuple[str, ...]
    objectives: tuple[Objective, ...]
    features: FeatureSet
    window: WindowConfig
    mix: MixConfig = field(default_factory=MixConfig)


def preset(day: str, size: str, source: str = "planted") -> RunConfig:
    """The complete config of one day at one size on one source."""
    if size not in SIZES:
        raise ConfigError(f"size must be one of {list(SIZES)}, got {size!r}; choose one")
    spec = source_spec(source, size)
    return RunConfig(
        day=day,
        size=size,
        source=spec.source,
        surfaces=spec.surfaces,
        objectives=spec.objectives,
        features=spec.features,
        window=spec.window,
        mix=spec.mix,
        model=_model(size),
        train=_train(size),
        evaluation=EvaluationConfig(min_positives=20 if size == "smoke" else 50),
        solaris=SolarisConfig(num_shards=1 if size == "smoke" else 2),
    )


def source_spec(source: str, size: str) -> SourceSpec:
    """The spec of a known source or of a TOML file."""
    known: dict[str, Callable[[str], SourceSpec]] = {
        "planted": planted,
        "openbandit": openbandit,
        "movielens": movielens,
        "tafeng": tafeng,
    }
    if source in known:
        return known[source](size)
    path = Path(source)
    if path.suffix == ".toml":
        return read_spec(path)
    raise ConfigError(
        f"source must be one of {sorted(known)} or a .toml file, got {source!r}; "
        "docs/your-own-logs.md shows how to bring one's own"
    )


def read_spec(path: Path) -> SourceSpec:
    """A source spec from a TOML file with the fields of `SourceSpec`."""
    try:
        data: dict[str, Any] = tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise ConfigError(f"source file {path} does not exist; check the path") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"source file {path} is not TOML: {error}; fix it") from None
    for table in data.get("source", {}).get("tables", []):
        if isinstance(table.get("columns"), dict):
            table["columns"] = sorted(table["columns"].items())
    return from_dict(SourceSpec, data)


def landed(*tables: str) -> tuple[TableMapping, ...]:
    """Mappings of tables that lie in the landing area under their canonical names."""
    return tuple(
        TableMapping(table=t, path=f"{{landing}}/{t}/day={{day}}/*.parquet")  # type: ignore[arg-type]
        for t in tables
    )


def planted(size: str) -> SourceSpec:
    """Planted logs: three surfaces, two objectives, organic engagements, finalists."""
    scale = {
        "smoke": PlantedConfig(rows_per_day=3_000, users=400, ads=80, categories=8),
        "small": PlantedConfig(),
        # in 30 days the most active users see more than 16,000 impressions
        "base": PlantedConfig(
            rows_per_day=1_000_000, users=100_000, ads=5_000, categories=32, activity_sd=1.2
        ),
    }[size]
    window = WindowConfig(bootstrap_days=4, student_days=2) if size == "smoke" else WindowConfig()
    return SourceSpec(
        source=SourceConfig(
            name="planted",
            kind="planted",
            planted=scale,
            tables=landed("impressions", "conversions", "engagements", "candidates"),
        ),
        surfaces=PLANTED_SURFACES,
        objectives=(Objective(name="click"), Objective(name="conversion", window_hours=24)),
        features=FeatureSet(
            tables=(
                EmbeddingTable(name="user", buckets=max(1_000, 2 * scale.users)),
                EmbeddingTable(name="ad", buckets=max(1_000, 4 * scale.ads)),
                EmbeddingTable(name="category", buckets=256),
                EmbeddingTable(name="advertiser", buckets=1_000),
                EmbeddingTable(name="cluster", buckets=256),
                EmbeddingTable(name="request", buckets=64),
                EmbeddingTable(name="position", buckets=64),
                EmbeddingTable(name="surface", buckets=64),
            ),
            sparse=(
                SparseFeature(name="user_id", table="user", scope="user", central_only=True),
                SparseFeature(name="user_cluster", table="cluster", scope="user"),
                SparseFeature(name="ad_id", table="ad", scope="ad"),
                SparseFeature(name="advertiser_id", table="advertiser", scope="ad"),
                SparseFeature(name="category_id", table="category", scope="ad"),
                SparseFeature(
                    name="request_attribute", table="request", scope="request", central_only=True
                ),
                SparseFeature(name="position", table="position", scope="request"),
                SparseFeature(name="surface", table="surface", scope="request"),
            ),
            dense=(
                *(
                    DenseFeature(name=f"interest_{i}", scope="user", central_only=True)
                    for i in range(4)
                ),
                DenseFeature(name="purchase_intent", scope="user", central_only=True),
            ),
            events=_events("shown", "organic"),
            matches=(*_matches("shown"), MatchCount(event="organic", key="category_id")),
        ),
        window=window,
    )


def openbandit(size: str) -> SourceSpec:
    """Open Bandit sample: campaigns as surfaces; clicks only."""
    return SourceSpec(
        source=SourceConfig(name="openbandit", tables=landed("impressions")),
        surfaces=("all", "men", "women"),
        objectives=(Objective(name="click"),),
        features=_plain_features(
            user=("user_feature_0", "user_feature_1", "user_feature_2", "user_feature_3"),
            ad=("item_feature_1", "item_feature_2", "item_feature_3"),
            dense=(
                DenseFeature(name="item_feature_0", scope="ad"),
                DenseFeature(name="user_item_affinity", scope="request"),
            ),
            users=20_000,
            ads=1_000,
        ),
        window=WindowConfig(bootstrap_days=7, student_days=3, holdout_hours=24),
    )


def movielens(size: str) -> SourceSpec:
    """MovieLens-100k: genre groups as surfaces; click = rating of 4 or more, conversion = 5."""
    return SourceSpec(
        source=SourceConfig(name="movielens", tables=landed("impressions", "conversions")),
        surfaces=("action", "comedy", "drama", "other"),
        objectives=(Objective(name="click"), Objective(name="conversion", window_hours=1)),
        features=_plain_features(
            user=("age_group", "gender", "occupation"),
            ad=("release_year", "second_genre"),
            users=5_000,
            ads=8_000,
        ),
        window=WindowConfig(
            bootstrap_days=220, student_days=60, holdout_hours=24 * 20, retention_days=220
        ),
        # more than half of the rows are clicks, which mixing always keeps
        mix=MixConfig(budget=2.0),
    )


def tafeng(size: str) -> SourceSpec:
    """Ta Feng grocery log: department groups as surfaces; conversion = bought again in 14 days.

    All 120 days are ingested and make histories; a first run trains on the last 35, since all of
    them cost four times as much (window.bootstrap_days=120).
    """
    return SourceSpec(
        source=SourceConfig(name="tafeng", tables=landed("impressions", "conversions")),
        surfaces=("dept_10", "dept_11", "dept_12", "dept_50", "dept_other"),
        objectives=(Objective(name="click"), Objective(name="conversion", window_hours=14 * 24)),
        features=_plain_features(
            user=("age_group", "area"),
            ad=("price_band",),
            users=64_000,
            ads=48_000,
        ),
        # students need conversion labels, which are known two weeks after the impression
        window=WindowConfig(
            bootstrap_days=35,
            student_days=24,
            holdout_hours=24 * 4,
            retention_days=121,
            history_days=121,
        ),
        # half of the rows are clicks, which mixing always keeps
        mix=MixConfig(budget=3.0),
    )


def _plain_features(
    *,
    user: tuple[str, ...],
    ad: tuple[str, ...],
    users: int,
    ads: int,
    dense: tuple[DenseFeature, ...] = (),
) -> FeatureSet:
    extra = user + ad
    return FeatureSet(
        tables=(
            EmbeddingTable(name="user", buckets=users),
            EmbeddingTable(name="ad", buckets=ads),
            EmbeddingTable(name="category", buckets=4_096),
            EmbeddingTable(name="position", buckets=64),
            EmbeddingTable(name="surface", buckets=64),
            *(EmbeddingTable(name=name, buckets=1_024) for name in extra),
        ),
        sparse=(
            SparseFeature(name="user_id", table="user", scope="user", central_only=True),
            *(SparseFeature(name=name, table=name, scope="user") for name in user),
            SparseFeature(name="ad_id", table="ad", scope="ad"),
            SparseFeature(name="category_id", table="category", scope="ad"),
            *(SparseFeature(name=name, table=name, scope="ad") for name in ad),
            SparseFeature(name="position", table="position", scope="request"),
            SparseFeature(name="surface", table="surface", scope="request"),
        ),
        dense=dense,
        events=_events("shown"),
        matches=_matches("shown"),
    )


def _events(*names: str) -> tuple[EventType, ...]:
    attributes = (
        EventAttribute(column="category_id", table="category"),
        EventAttribute(column="surface", table="surface"),
        EventAttribute(column="action", table="surface"),
    )
    shown = EventType(
        name="shown",
        source="impressions",
        attributes=(EventAttribute(column="ad_id", table="ad"), *attributes),
        max_len=32,
        width=16,
        heads=2,
        tokens=4,
        window=16,
    )
    organic = EventType(
        name="organic",
        source="engagements",
        attributes=attributes[:2],
        max_len=24,
        width=16,
        heads=2,
        tokens=2,
        window=16,
        availability_delay_s=60,
    )
    return tuple(event for event in (shown, organic) if event.name in names)


def _matches(event: str) -> tuple[MatchCount, ...]:
    return (MatchCount(event=event, key="ad_id"), MatchCount(event=event, key="category_id"))


def _model(size: str) -> ModelConfig:
    if size == "base":
        return ModelConfig(
            embedding_dim=64,
            width=128,
            layers=6,
            heads=4,
            summary_tokens=16,
            seeds=32,
            sumkron_rank=4,
            wukong_experts=1,
            fm_rank=32,
            mlp_width=512,
            head_width=128,
            adapter_rank=16,
            representation_dim=32,
        )
    return ModelConfig()


def _train(size: str) -> TrainConfig:
    if size == "base":
        return replace(TrainConfig(), batch_size=4_096, checkpoint_every_s=300.0)
    return TrainConfig(batch_size=256 if size == "smoke" else 512)
