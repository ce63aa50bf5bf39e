"""Complete run configs: a size dial, and what each known source offers.

`preset(day, size, source)` is the one entry. A source is a name (planted, or one of
source_specs.py) or the path of a TOML file that describes one's own logs (docs/your-own-logs.md).
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import replace
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
    Objective,
    SparseFeature,
)
from model.sizes import model_config
from pipeline.run.codec import from_dict
from pipeline.run.config import (
    EvaluationConfig,
    MixConfig,
    RunConfig,
    SolarisConfig,
    SourceConfig,
    WindowConfig,
)
from pipeline.run.planted import (
    PLANTED_SURFACES,
    SCALING_DELAY_S,
    SCALING_HORIZON,
    SCALING_KINDS,
    PlantedConfig,
)
from pipeline.run.scaling import ScalingConfig
from pipeline.run.source_specs import (
    SourceSpec,
    aliccp,
    events,
    kuairand,
    landed,
    matches,
    movielens,
    openbandit,
    tafeng,
    taobaoad,
)
from pipeline.run.train import TrainConfig

__all__ = ["SIZES", "SourceSpec", "landed", "planted", "preset", "read_spec", "source_spec"]
SIZES = ("smoke", "small", "base")


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
        scaling=spec.scaling,
        model=model_config(size),
        train=_train(size),
        evaluation=EvaluationConfig(min_positives=20 if size == "smoke" else 50),
        solaris=SolarisConfig(num_shards=1 if size == "smoke" else 2),
    )


def source_spec(source: str, size: str) -> SourceSpec:
    """The spec of a known source or of a TOML file."""
    known: dict[str, Callable[[str], SourceSpec]] = {
        "planted": planted,
        "scaling": scaling,
        "openbandit": openbandit,
        "movielens": movielens,
        "tafeng": tafeng,
        "taobaoad": taobaoad,
        "aliccp": aliccp,
        "kuairand": kuairand,
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
            events=events("shown", "organic"),
            matches=(*matches("shown"), MatchCount(event="organic", key="category_id")),
        ),
        window=window,
        # a fifth cheaper than the reference surface: at small it closes as much of the distance to
        # Bayes NE (.543 against .542), since mixing keeps every positive
        mix=MixConfig(budget=0.8),
    )


def scaling(size: str) -> SourceSpec:
    """Planted logs of the scaling variant, every row kept, and the ladder that is trained on it."""
    rows, users, days = {
        "smoke": (700, 100, 4),
        "small": (15_000, 2_000, 12),
        "base": (60_000, 8_000, 12),
    }[size]
    world = PlantedConfig(
        variant="scaling",
        rows_per_day=rows,
        users=users,
        ads=120,
        categories=12,
        organic_per_user_day=10.0,
        activity_sd=0.5,
    )
    return SourceSpec(
        source=SourceConfig(
            name="scaling",
            kind="planted",
            planted=world,
            tables=landed("impressions", "conversions", "engagements", "candidates"),
        ),
        surfaces=PLANTED_SURFACES,
        objectives=(Objective(name="click"),),
        features=_scaling_features(users),
        window=WindowConfig(
            bootstrap_days=days,
            holdout_hours=24 if size == "smoke" else 48,
            student_days=3,
            history_days=days + 4,
        ),
        mix=MixConfig(budget=1_000.0),
        scaling=_ladder(size),
    )


def _scaling_features(users: int) -> FeatureSet:
    """Histories are organic events alone: the click logit is made of them (docs/planted.md)."""
    organic = EventType(
        name="organic",
        source="engagements",
        attributes=(
            EventAttribute(column="category_id", table="category"),
            EventAttribute(column="action", table="action"),
        ),
        max_len=SCALING_HORIZON,
        kinds=SCALING_KINDS,
        availability_delay_s=SCALING_DELAY_S,
    )
    few = ("category", "cluster", "request", "surface", "action")
    return FeatureSet(
        tables=(
            EmbeddingTable(name="user", buckets=8 * users),
            EmbeddingTable(name="ad", buckets=4_096),
            *(EmbeddingTable(name=name, buckets=1_024) for name in few),
        ),
        sparse=(
            SparseFeature(name="user_id", table="user", scope="user"),
            SparseFeature(name="user_cluster", table="cluster", scope="user"),
            SparseFeature(name="ad_id", table="ad", scope="ad"),
            SparseFeature(name="category_id", table="category", scope="ad"),
            SparseFeature(name="request_attribute", table="request", scope="request"),
            SparseFeature(name="surface", table="surface", scope="request"),
        ),
        events=(organic,),
        matches=(MatchCount(event="organic", key="category_id"),),
    )


def _ladder(size: str) -> ScalingConfig:
    if size == "base":
        return ScalingConfig()
    if size == "small":
        return ScalingConfig(mflops=(0.4, 0.93, 2.2), seeds=2)
    return ScalingConfig(
        mflops=(0.12, 0.3), seeds=1, labels=("soft",), trials=((3e-3, 3e-2),), tuned_rungs=(0,)
    )


def _train(size: str) -> TrainConfig:
    if size == "base":
        return replace(TrainConfig(), batch_size=4_096, checkpoint_every_s=300.0)
    return TrainConfig(batch_size=256 if size == "smoke" else 512)
