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
Activation = Literal["gelu", "silu", "relu", "relu_square", "identity"]


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
    a click that was not yet known. `width`, `heads`, `tokens`, `layers`, `window`: the tower's own
    size (event-level personalization, arXiv 2602.10016 section on Kunlun's towers); a tower runs
    in the first `layers` layers (0: all of them), then what was pooled from it is reused.
    `kinds`: kinds of engagements by name; an event's `action` is then the place of its kind in
    this list, and the list's length for any other kind. Without them the action is 1.
    """

    name: str
    source: Literal["impressions", "engagements"]
    attributes: tuple[EventAttribute, ...]
    max_len: int
    kinds: tuple[str, ...] = ()
    availability_delay_s: int = 600
    width: int = 32
    heads: int = 2
    tokens: int = 4
    window: int = 16
    layers: int = 0


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
    """Shape of the foundation model; docs/kunlun.md explains each switch (arXiv 2602.10016).

    `arch`: the trunk between embeddings and heads, Kunlun or a baseline (docs/baselines.md), sized
    by the same fields. `dropout`: of what the heads read, for every trunk alike. `precision` mxfp8
    keeps in float32 the layers that the patterns of `mxfp8_keep` name (model/precision.py), and the
    last `mxfp8_keep_last` layers of the trunk.
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
    partition: Literal["alternate", "contiguous", "interleaved"] = "alternate"
    residual_init: Literal["identity", "random"] = "identity"
    fm_rank: int = 8
    mlp_width: int = 64
    head_width: int = 32
    heads_read: Literal["x", "x_and_h"] = "x_and_h"
    ad_products: int = 64  # per tower; 0: none
    ad_product_decays: int = 2
    ad_products_for: Literal["kunlun", "all"] = "kunlun"  # trunks that have them
    surface_experts: bool = True
    adapter_rank: int = 4
    dropout: float = 0.0
    attention: Literal["full", "window", "block"] = "window"
    attention_block: int = 64
    last_attention: Literal["read_out", "skip"] = "read_out"
    pffn: Literal["gdpa", "none"] = "gdpa"
    gdpa_context: Literal["all", "user"] = "all"
    gdpa_short_path: int = 4
    gdpa_activation: Activation | tuple[Activation, ...] = "gelu"
    gdpa_tau: Literal["auto", "sqrt_k", "max_len"] | float = "auto"
    qk_norm: bool = False
    summarize_norm: bool = True
    pooling: Literal["hsp", "pma"] = "hsp"
    compskip: bool = True
    rote: Literal["gap", "age", "none"] = "gap"
    rote_tau_s: float = 60.0
    rote_theta_base: float = 1e4
    rote_phi_base: float | None = None  # None: phi = theta
    embedding_init_sd: float = 0.2
    representation_dim: int = 16
    representation_layers: tuple[int, ...] = (1,)  # counted from 1; several are joined
    precision: Literal["float32", "mxfp8"] = "float32"
    mxfp8_keep: tuple[str, ...] = ()
    mxfp8_keep_last: int = 1

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
        for name, least in _LEAST.items():
            value = getattr(self, name)
            require(value >= least, f"model.{name}", f"at least {least}", value, f"use {least}")
        taken = self.representation_layers
        require(
            len(taken) > 0 and all(1 <= layer <= self.layers for layer in taken),
            "model.representation_layers",
            f"layers from 1 to model.layers = {self.layers}",
            taken,
            "use (1,), the first: shallow representations transfer better",
        )
        for name in ("gdpa_tau", "rote_tau_s", "rote_theta_base", "rote_phi_base"):
            value = getattr(self, name)
            require(
                not isinstance(value, (int, float)) or value > 0,
                f"model.{name}",
                "above 0",
                value,
                "leave it out to keep the default",
            )

    @property
    def gdpa_activations(self) -> tuple[Activation, ...]:
        """Activations that GDPA's heads take in turn."""
        one = isinstance(self.gdpa_activation, str)
        return (self.gdpa_activation,) if one else self.gdpa_activation  # type: ignore[return-value]

    def layers_of(self, event: EventType) -> int:
        """Layers in which a tower runs."""
        return event.layers or self.layers

    def pools(self, event: EventType, layer: int) -> bool:
        """Whether a tower runs GDPA and pooling in a layer; CompSkip: in even layers."""
        return layer < self.layers_of(event) and not (self.compskip and layer % 2 == 1)

    def attends(self, event: EventType, layer: int) -> bool:
        """Whether a tower runs self-attention in a layer; CompSkip: in odd layers."""
        last = self.layers_of(event) - (1 if self.last_attention == "skip" else 0)
        return layer < last and not (self.compskip and layer % 2 == 0)

    def reads_out(self, event: EventType) -> bool:
        """Whether a tower ends on self-attention, which one more pooling must read."""
        return self.attends(event, self.layers_of(event) - 1)


_LEAST = {
    "layers": 1,
    "summary_tokens": 1,
    "seeds": 1,
    "sumkron_rank": 0,
    "wukong_experts": 1,
    "fm_rank": 1,
    "adapter_rank": 1,
    "attention_block": 1,
    "gdpa_short_path": 0,
    "ad_products": 0,
    "ad_product_decays": 1,
    "mxfp8_keep_last": 0,
}


def check_towers(features: FeatureSet, config: ModelConfig) -> None:
    """Refuse event towers that the model cannot build, and switches that contradict them."""
    for event in features.events:
        _check_tower(event, config)
    require(
        config.gdpa_context == "all" or any(f.scope != "ad" for f in features.sparse),
        "model.gdpa_context",
        "all when every sparse feature belongs to the ad",
        config.gdpa_context,
        "declare a user or request feature, or use all",
    )


def _check_tower(event: EventType, config: ModelConfig) -> None:
    def need(holds: bool, field: str, rule: str, remedy: str) -> None:
        require(holds, f"events.{event.name}.{field}", rule, getattr(event, field), remedy)

    for field, least in {"max_len": 1, "heads": 1, "tokens": 1, "window": 1, "layers": 0}.items():
        need(getattr(event, field) >= least, field, f"at least {least}", f"use {least}")
    need(
        event.layers <= config.layers,
        "layers",
        f"at most model.layers = {config.layers}",
        "use 0 for all layers",
    )
    unit = event.heads * (1 if config.rote == "none" else 2)
    need(
        event.width % unit == 0,
        "width",
        f"a multiple of {unit} ({event.heads} heads, of even width with rotary time)",
        f"use {unit * max(1, event.width // unit)}",
    )
    need(
        config.pooling == "pma" or config.seeds > event.tokens,
        "tokens",
        f"fewer than model.seeds = {config.seeds} with pooling = hsp, which compresses",
        "raise model.seeds",
    )
    names = config.gdpa_activations
    need(
        len(names) > 0 and event.heads % len(names) == 0,
        "heads",
        f"a multiple of the {len(names)} names in model.gdpa_activation",
        "give one name, or one per head",
    )
    unread = config.heads_read == "x" and config.layers_of(event) == config.layers
    require(
        not (unread and config.reads_out(event)),
        "model.last_attention",
        f"skip where heads_read = x: nobody reads the last attention of {event.name}",
        config.last_attention,
        "use skip, or heads_read = x_and_h",
    )
