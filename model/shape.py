"""What decides a model's size besides its config, and the shape that planted logs have at a size.

Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from model.config import (
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
from model.sizes import model_config

USERS = {"smoke": 400, "small": 5_000, "base": 100_000, "large": 1_000_000}
ADS = {"smoke": 80, "small": 400, "base": 5_000, "large": 50_000}


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What decides a model's size besides its config."""

    features: FeatureSet
    objectives: tuple[Objective, ...]
    num_surfaces: int


def reference_shape(size: str) -> tuple[Shape, ModelConfig]:
    """The shape that planted logs have, at a size."""
    objectives = (Objective(name="click"), Objective(name="conversion", window_hours=24))
    shape = Shape(features=reference_features(size), objectives=objectives, num_surfaces=3)
    return shape, model_config(size)


def reference_features(size: str) -> FeatureSet:
    """As many features, tables and events as planted logs have (a test holds them equal)."""
    buckets = {
        "user": max(1_000, 2 * USERS[size]),
        "ad": max(1_000, 4 * ADS[size]),
        "category": 256,
        "advertiser": 1_000,
        "cluster": 256,
        "request": 64,
        "position": 64,
        "surface": 64,
    }
    ad = ("ad", "advertiser", "category")

    def event(name: str, *tables: str, max_len: int, tokens: int) -> EventType:
        attributes = tuple(EventAttribute(column=t, table=t) for t in tables)
        kind = EventType(name=name, source="impressions", attributes=attributes, max_len=max_len)
        return replace(kind, width=16, tokens=tokens)

    return FeatureSet(
        tables=tuple(EmbeddingTable(name=n, buckets=b) for n, b in buckets.items()),
        sparse=tuple(
            SparseFeature(name=n, table=n, scope="ad" if n in ad else "user") for n in buckets
        ),
        dense=tuple(DenseFeature(name=f"number_{i}", scope="user") for i in range(5)),
        events=(
            event("shown", "ad", "category", "surface", "surface", max_len=32, tokens=4),
            event("organic", "category", "surface", max_len=24, tokens=2),
        ),
        matches=(
            MatchCount(event="shown", key="ad_id"),
            MatchCount(event="shown", key="category_id"),
            MatchCount(event="organic", key="category_id"),
        ),
    )
