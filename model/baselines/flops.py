"""Forward FLOPs of the baselines' trunks per row, from true lengths; standard library only.

As in `model/flops.py`, matrix products count as the model runs them (a multiply-add is 2). Entry of
events, heads, compressor and the dense token are counted there: they are the same for every trunk.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from model.baselines.widths import (
    CLS_TOKENS,
    PMA_TOKENS,
    SUMMARY,
    flat_width,
    num_ad_tokens,
    num_context_tokens,
    num_pooled_tokens,
)
from model.config import EventType, FeatureSet, ModelConfig
from model.flops_layers import linear, plain_pool, seed_attention, wukong_layer

Lengths = Mapping[str, Any]


def trunk_flops(config: ModelConfig, features: FeatureSet, lengths: Lengths) -> dict[str, Any]:
    """FLOPs per row of a baseline's parts."""
    if config.arch == "interformer":
        return _interformer(config, features, lengths)
    if config.arch in ("wukong", "wukong_pma"):
        return _wukong(config, features, lengths)
    return _flat(config, features, lengths)


def _wukong(config: ModelConfig, features: FeatureSet, lengths: Lengths) -> dict[str, Any]:
    total = num_context_tokens(features) + num_pooled_tokens(features)
    parts: dict[str, Any] = {"interaction": config.layers * wukong_layer(config, total, total)}
    for event in features.events:
        pool = plain_pool if config.arch == "wukong_pma" else _mean_pool
        parts[f"{event.name}.pool"] = pool(config, event, lengths[event.name])
    return parts


def _mean_pool(config: ModelConfig, event: EventType, length: Any) -> Any:
    return 2 * event.width * length + linear(event.width, event.tokens * config.width)


def _flat(config: ModelConfig, features: FeatureSet, lengths: Lengths) -> dict[str, Any]:
    """DCNv2 and DIN: what reads the towers, then networks on one flat vector."""
    width, hidden = flat_width(features, config), [config.mlp_width] * config.layers
    parts: dict[str, Any] = {"deep": sum(linear(a, b) for a, b in pairwise([width, *hidden]))}
    if config.arch == "dcnv2":
        parts["cross"] = config.layers * linear(width, width)
    for event in features.events:
        length = lengths[event.name]
        if config.arch == "din":
            parts[f"{event.name}.pool"] = 2 * event.width * length
            parts[f"{event.name}.unit"] = _activation_unit(config, features, event, length)
    return parts


def _activation_unit(
    config: ModelConfig, features: FeatureSet, event: EventType, length: Any
) -> Any:
    units = max(1, config.mlp_width // 2)
    per_row = linear(num_ad_tokens(features) * config.width, event.width) + linear(
        event.width, units
    )
    return per_row + (linear(2 * event.width, units) + linear(units, 1)) * length


def _interformer(config: ModelConfig, features: FeatureSet, lengths: Lengths) -> dict[str, Any]:
    num_x, events = num_context_tokens(features), features.events
    wukong = wukong_layer(config, num_x + SUMMARY * len(events), num_x)
    parts: dict[str, Any] = {"interaction": config.layers * wukong}
    if events:
        n = config.summary_tokens
        parts["summarize"] = _context(config, num_x, CLS_TOKENS)
        parts["summarize"] += config.layers * _context(config, num_x, n)
    for event in events:
        parts |= _tower(config, event, lengths[event.name] + CLS_TOKENS)
    return parts


def _context(config: ModelConfig, num_x: int, tokens: int) -> int:
    """Token-axis linear and gate."""
    return tokens * (linear(num_x, config.width) + 2 * linear(config.width, config.width))


def _tower(config: ModelConfig, event: EventType, length: Any) -> dict[str, Any]:
    """A tower of InterFormer; `length` counts the CLS tokens, which every row has."""
    width, name, inputs = event.width, event.name, config.summary_tokens * config.width
    gate = SUMMARY * (2 * linear(width, width) + linear(width, config.width))
    personal = linear(inputs, width**2) + linear(width, width) * length
    attend = 4 * linear(width, width) * length + 4 * width * length * length
    return {
        f"{name}.cls": CLS_TOKENS * linear(config.width, width),
        f"{name}.pffn": config.layers * personal,
        f"{name}.pool": (config.layers + 1) * (seed_attention(event, PMA_TOKENS, length) + gate),
        f"{name}.attention": config.layers * attend,
    }
