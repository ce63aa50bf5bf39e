"""Features and model shape, as plain data: standard library only, so that any process may read it.

A run's config holds one `FeatureSet` and one `ModelConfig`. Nothing about a feature is written
in the model's code: every table, token and event tower is derived from the declarations here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Scope = Literal["user", "ad", "request"]
ObjectiveName = Literal["click", "conversion", "offsite_conversion", "install"]
Arch = Literal["kunlun", "wukong", "wukong_pma", "interformer", "dcnv2", "din"]


class ConfigError(ValueError):
    """A setting is wrong; the message names the field, the value and the remedy."""


def require(holds: bool, field: str, rule: str, got: object, remedy: str) -> None:
    """Raise `ConfigError` unless `holds`: "<field> must be <rule>, got <got>; <remedy>"."""
    if not holds:
        raise ConfigError(f"{field} must be {rule}, got {got!r}; {remedy}")


@dataclass(frozen=True, kw_only=True)
class EmbeddingTable:
    """One embedding table: ids are hashed into `buckets` rows."""

    name: str
    buckets: int

    def __post_init__(self) -> None:
        require(self.buckets >= 2, f"{self.name}.buckets", "at least 2", self.buckets, "raise it")


@dataclass(frozen=True, kw_only=True)
class SparseFeature:
    """One id per impression, read from the canonical column `name`, looked up in `table`.

    `central_only` features exist for the foundation model alone: students never see them.
    """

    name: str
    table: str
    scope: Scope
    central_only: bool = False


@dataclass(frozen=True, kw_only=True)
class DenseFeature:
    """One number per impression, read from the canonical column `name`."""

    name: str
    scope: Scope
    central_only: bool = False
    transform: Literal["none", "log1p"] = "none"


@dataclass(frozen=True, kw_only=True)
class EventAttribute:
    """One id of an event: timeline column `column`, looked up in embedding table `table`."""

    column: str
    table: str


@dataclass(frozen=True, kw_only=True)
class EventType:
    """One kind of event in the user timelines and the tower that reads it.

    `source` is the canonical table; from "impressions" an event's `action` is the click label
    and it becomes visible `availability_delay_s` after it happened, so that no impression sees
    a click that was not yet known. `width`, `heads`, `tokens`, `window`: the tower's own size
    (event-level personalization, arXiv 2602.10016 section on Kunlun's towers).
    """

    name: str
    source: Literal["impressions", "engagements"]
    attributes: tuple[EventAttribute, ...]
    max_len: int
    availability_delay_s: int = 600
    width: int = 32
    heads: int = 2
    tokens: int = 4
    window: int = 16


@dataclass(frozen=True, kw_only=True)
class MatchCount:
    """Two dense features: how many visible events of `event` share the impression's `key`.

    The first counts all of them, the second those with action = 1; both enter as log(1 + n).
    `key` is a column of both the timeline and the impressions: ad_id or category_id.
    """

    event: str
    key: Literal["ad_id", "category_id"]

    @property
    def columns(self) -> tuple[str, str]:
        """Column names of the two counts."""
        return f"match_{self.event}_{self.key}", f"match_{self.event}_{self.key}_acted"


@dataclass(frozen=True, kw_only=True)
class Objective:
    """One prediction task; conversions join within `window_hours` and are mature after it."""

    name: ObjectiveName
    window_hours: int = 0
    task_weight: float = 1.0


@dataclass(frozen=True, kw_only=True)
class FeatureSet:
    """All features of a source: tables, sparse and dense features, event types, match counts."""

    tables: tuple[EmbeddingTable, ...]
    sparse: tuple[SparseFeature, ...]
    dense: tuple[DenseFeature, ...] = ()
    events: tuple[EventType, ...] = ()
    matches: tuple[MatchCount, ...] = ()

    def __post_init__(self) -> None:
        tables = {t.name for t in self.tables}
        for feature in self.sparse:
            require(
                feature.table in tables,
                f"sparse.{feature.name}.table",
                "a declared table",
                feature.table,
                f"declare it among {sorted(tables)}",
            )
        events = {e.name for e in self.events}
        for event in self.events:
            for attribute in event.attributes:
                require(
                    attribute.table in tables,
                    f"events.{event.name}.{attribute.column}.table",
                    "a declared table",
                    attribute.table,
                    f"declare it among {sorted(tables)}",
                )
        for match in self.matches:
            require(
                match.event in events,
                f"matches.{match.event}",
                "a declared event type",
                match.event,
                f"choose among {sorted(events)}",
            )

    @property
    def dense_columns(self) -> tuple[str, ...]:
        """Names of the dense inputs in batch order: declared features, then match counts."""
        return tuple(d.name for d in self.dense) + tuple(
            column for match in self.matches for column in match.columns
        )

    def for_students(self) -> FeatureSet:
        """The features that a student may see: no central-only ones, and no event towers."""
        return FeatureSet(
            tables=self.tables,
            sparse=tuple(f for f in self.sparse if not f.central_only),
            dense=tuple(f for f in self.dense if not f.central_only),
            events=self.events,
            matches=(),
        )


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Shape of the foundation model (names follow arXiv 2602.10016; shapes in docs).

    `arch`: the trunk between embeddings and heads, Kunlun or a baseline (docs/baselines.md), sized
    by the same fields. `dropout`: of what the heads read, for every trunk alike.
    """

    arch: Arch = "kunlun"
    embedding_dim: int = 16
    width: int = 16
    layers: int = 2
    heads: int = 2
    summary_tokens: int = 4
    seeds: int = 8
    sumkron_rank: int = 2
    wukong_experts: int = 1
    fm_rank: int = 8
    mlp_width: int = 64
    head_width: int = 32
    adapter_rank: int = 4
    dropout: float = 0.0
    attention: Literal["full", "window"] = "window"
    gdpa_context: Literal["all", "user"] = "all"
    gdpa_short_path: int = 4
    gdpa_activation: Literal["gelu", "silu", "relu", "relu_square", "identity"] = "gelu"
    qk_norm: bool = False
    pooling: Literal["hsp", "pma"] = "hsp"
    compskip: bool = True
    rote: Literal["gap", "age", "none"] = "gap"
    rote_tau_s: float = 60.0
    embedding_init_sd: float = 0.2
    representation_dim: int = 16

    def __post_init__(self) -> None:
        require(
            self.width % self.heads == 0,
            "model.width",
            "a multiple of model.heads",
            self.width,
            f"use {self.heads * max(1, self.width // self.heads)}",
        )
        require(
            0 <= self.dropout < 1, "model.dropout", "in [0, 1)", self.dropout, "use 0.0 for none"
        )
        require(
            not (self.gdpa_context == "user" and self.gdpa_short_path > 0),
            "model.gdpa_short_path",
            "0 with gdpa_context = user",
            self.gdpa_short_path,
            "the short path reads the ad, which a user context must not",
        )
