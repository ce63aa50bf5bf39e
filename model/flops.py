"""Forward FLOPs of the foundation model per row, from true lengths: plain arithmetic, no torch.

Counted are matrix products as the model runs them (a multiply-add is 2); lookups, norms,
activations and softmax are not, nor are pairs outside of an attention's window or block, which a
kernel may compute and throw away. Training costs three times the forward pass. A row's cost is
`fixed + linear * events + pairs * attended pairs` per tower; arrays may be numpy or anything with
their arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from model.baselines.flops import trunk_flops
from model.baselines.widths import (
    history_width,
    num_context_tokens,
    num_products,
    read_width,
    represented_width,
)
from model.config import EventType, FeatureSet, ModelConfig
from model.flops_layers import plain_pool, seed_attention, wukong_layer

Lengths = Mapping[str, Any]


def flops_per_row(
    config: ModelConfig,
    features: FeatureSet,
    num_objectives: int,
    lengths: Lengths,
    num_surfaces: int = 1,
) -> Any:
    """Forward FLOPs of each row; `lengths` gives the visible events per event type."""
    parts = flops_by_part(config, features, num_objectives, lengths, num_surfaces)
    return sum(parts.values())


def flops_by_part(
    config: ModelConfig,
    features: FeatureSet,
    num_objectives: int,
    lengths: Lengths,
    num_surfaces: int = 1,
) -> dict[str, Any]:
    """FLOPs per row: tokens, heads and compressor, which trunks share, and the trunk's parts."""
    parts: dict[str, Any] = {
        "tokens": _tokens(config, features),
        "heads": _heads(config, features, num_objectives, num_surfaces),
        "compressor": 2
        * config.mlp_width
        * (represented_width(features, config) + config.representation_dim),
    }
    for event in features.events:
        entry = 2 * event.width * (config.embedding_dim * len(event.attributes) + 2)
        length = lengths[event.name]
        # DCNv2 takes the mean first: one projection whatever the length (of its shape, for arrays)
        parts[f"{event.name}.entry"] = entry * (
            length * 0 + 1 if config.arch == "dcnv2" else length
        )
        if num_products(features, config):
            parts[f"{event.name}.products"] = _products(config, features, event, length)
    trunk = _kunlun if config.arch == "kunlun" else trunk_flops
    return parts | trunk(config, features, lengths)


def _kunlun(config: ModelConfig, features: FeatureSet, lengths: Lengths) -> dict[str, Any]:
    parts: dict[str, Any] = {"interaction": config.layers * _interaction(config, features)}
    summary = 2 * config.summary_tokens * config.width * (_context(config, features) + config.width)
    if features.events:
        parts["summarize"] = _summarizes(config, features) * summary
    for event in features.events:
        length = lengths[event.name]
        pools, attends = _counts(config, event)
        feeds = pools if config.pffn == "gdpa" else 0
        parts[f"{event.name}.gdpa"] = feeds * _gdpa(config, features, event, length)
        read_out = plain_pool(config, event, length) if config.reads_out(event) else 0
        parts[f"{event.name}.pool"] = pools * _pool(config, event, length) + read_out
        parts[f"{event.name}.attention"] = attends * (
            2 * 4 * event.width**2 * length + 4 * event.width * _pairs(config, event, length)
        )
    return parts


def folds(event: EventType, num_keys: int, config: ModelConfig) -> bool:
    """Whether GDPA multiplies its projections into the keys and values instead of the events."""
    plain = config.precision == "float32" and not config.qk_norm
    return plain and (event.heads - 1) * num_keys <= event.width


def _counts(config: ModelConfig, event: EventType) -> tuple[int, int]:
    """Layers in which a tower is pooled, and those with self-attention."""
    layers = range(config.layers)
    return sum(config.pools(event, i) for i in layers), sum(
        config.attends(event, i) for i in layers
    )


def _summarizes(config: ModelConfig, features: FeatureSet) -> int:
    """Layers in which some tower reads the summary."""
    if config.pffn == "none":
        return 0
    return sum(
        any(config.pools(e, layer) for e in features.events) for layer in range(config.layers)
    )


def _num_ad(features: FeatureSet) -> int:
    return sum(f.scope == "ad" for f in features.sparse)


def _context(config: ModelConfig, features: FeatureSet) -> int:
    if config.gdpa_context == "user":
        return len(features.sparse) - _num_ad(features)
    return num_context_tokens(features)


def _tokens(config: ModelConfig, features: FeatureSet) -> int:
    project = 0 if config.embedding_dim == config.width else len(features.sparse)
    return 2 * config.width * (project * config.embedding_dim + len(features.dense_columns))


def _interaction(config: ModelConfig, features: FeatureSet) -> int:
    """All Wukong experts of one layer."""
    num_out = num_context_tokens(features)
    num_in = num_out + sum(e.tokens for e in features.events)
    experts = min(config.wukong_experts, num_out)
    return sum(
        wukong_layer(config, _share(num_in, experts, i), _share(num_out, experts, i))
        for i in range(experts)
    )


def _share(total: int, parts: int, index: int) -> int:
    return total // parts + (index < total % parts)


def _heads(
    config: ModelConfig, features: FeatureSet, num_objectives: int, num_surfaces: int
) -> int:
    read = read_width(features, config) + len(features.dense_columns)
    adapters = (
        2 * num_surfaces * config.adapter_rank + num_surfaces if config.surface_experts else 0
    )
    per_trunk = read + adapters + num_objectives * config.head_width
    return 2 * (config.mlp_width * per_trunk + num_surfaces * num_objectives)


def _products(config: ModelConfig, features: FeatureSet, event: EventType, length: Any) -> Any:
    """Decayed sums of the events, and their projection and the ad's."""
    sums = config.ad_product_decays * history_width(event, config)
    per_row = config.ad_products * (sums + _num_ad(features) * config.width)
    return 2 * (sums * length + per_row)


def _gdpa(config: ModelConfig, features: FeatureSet, event: EventType, length: Any) -> Any:
    width, n = event.width, config.summary_tokens
    num_ad = _num_ad(features)
    short = config.gdpa_short_path if num_ad else 0
    generate = 2 * 2 * width * (n * (config.width + 2 * width) + num_ad * config.width * short)
    keys = n + short
    if not folds(event, keys, config):
        return generate + (4 * width**2 + 4 * keys * width) * length
    fold = 2 * 2 * keys * width**2
    return generate + fold + 4 * event.heads * keys * width * length


def _pool(config: ModelConfig, event: EventType, length: Any) -> Any:
    if config.pooling == "pma":
        return plain_pool(config, event, length)
    width, rank, tokens = event.width, config.sumkron_rank, event.tokens
    compress = 2 * rank * tokens * width * (config.seeds + config.width)
    if rank == 0:
        project = 0 if width == config.width else config.width
        compress = 2 * tokens * width * (config.seeds + project)
    return seed_attention(event, config.seeds, length) + compress


def _pairs(config: ModelConfig, event: EventType, length: Any) -> Any:
    """Query-key pairs that take part in attention: all, or those within the window or block."""
    if config.attention == "full":
        return length * length
    if config.attention == "block":
        rest = length % config.attention_block
        return (length - rest) * config.attention_block + rest * rest
    reach = (event.window + length - 1 - abs(event.window - (length - 1))) // 2  # the smaller one
    return length + 2 * (reach * length - reach * (reach + 1) // 2)
