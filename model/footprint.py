"""Kunlun's dense parameters by part and its activations per row: plain arithmetic, no torch.

Parameters are exact (a test counts those of the built model). Activations are the elements that a
backward pass reads again, with fused kernels that keep their inputs and outputs alone: what is kept
depends on the backend, and `model.summary` measures that of this machine.
"""

from __future__ import annotations

from collections.abc import Mapping

from model.baselines.widths import (
    history_width,
    num_ad_tokens,
    num_context_tokens,
    num_pooled_tokens,
    num_products,
    read_width,
    represented_width,
)
from model.config import EventType, FeatureSet, ModelConfig, require

INTERACTION = "trunk.interact"


def dense_parameters(
    config: ModelConfig, features: FeatureSet, num_objectives: int, num_surfaces: int
) -> dict[str, int]:
    """Parameters of every dense part, named as in `model.summary`; `ConfigError`: not Kunlun."""
    _only_kunlun(config)
    width, num_dense = config.width, len(features.dense_columns)
    trunk: dict[str, int] = {}
    for layer in range(config.layers):
        for part, count in _layer(config, features, layer).items():
            trunk[part] = trunk.get(part, 0) + count
    same = config.embedding_dim == width
    counts = {
        "to_width": 0 if same else config.embedding_dim * width,
        "dense_token": _linear(num_dense, width) if num_dense else 0,
        "entry": sum(_linear(_entry_width(config, e), e.width) for e in features.events),
        **trunk,
        "trunk.read_out": sum(
            _plain_pool(config, e) for e in features.events if config.reads_out(e)
        ),
        "products": sum(_products(config, features, e) for e in features.events),
        "heads": _heads(config, features, num_objectives, num_surfaces),
        "compressor": _compressor(config, features),
    }
    return {part: count for part, count in counts.items() if count}


def activation_elements(
    config: ModelConfig, features: FeatureSet, lengths: Mapping[str, float]
) -> float:
    """Elements kept of one row between forward and backward, with `lengths` events by type."""
    _only_kunlun(config)
    width, tokens = config.width, num_context_tokens(features)
    total = float(len(features.sparse) * config.embedding_dim + tokens * width)
    for event in features.events:
        total += lengths[event.name] * (_entry_width(config, event) + event.width)
        if num_products(features, config):
            embedded = 2 * len(event.attributes) * config.embedding_dim
            decays, summed = config.ad_product_decays, history_width(event, config)
            total += lengths[event.name] * (embedded + summed + 2 * decays)
            total += decays * summed + 2 * config.ad_products
    for layer in range(config.layers):
        total += _kept_by_interaction(config, features)
        pooled = [e for e in features.events if config.pools(e, layer)]
        if pooled and config.pffn == "gdpa":
            total += 3 * config.summary_tokens * width + tokens * width
            total += sum(_kept_by_gdpa(config, features, e, lengths[e.name]) for e in pooled)
        total += sum(_kept_by_pooling(config, e, lengths[e.name]) for e in pooled)
        attending = [e for e in features.events if config.attends(e, layer)]
        total += sum(8 * e.width * lengths[e.name] for e in attending)
    read = read_width(features, config) + len(features.dense_columns)
    shallow = represented_width(features, config)
    # the compressor reconstructs from three prefixes of its code
    return total + read + 6 * config.mlp_width + 5 * shallow + 8 * config.mlp_width


def _only_kunlun(config: ModelConfig) -> None:
    require(
        config.arch == "kunlun",
        "model.arch",
        "kunlun for what is counted by arithmetic",
        config.arch,
        "use python -m model.summary, which builds the model",
    )


def _linear(num_inputs: int, num_outputs: int, *, bias: bool = True) -> int:
    return num_inputs * num_outputs + (num_outputs if bias else 0)


def _entry_width(config: ModelConfig, event: EventType) -> int:
    return config.embedding_dim * len(event.attributes) + 2


def _layer(config: ModelConfig, features: FeatureSet, layer: int) -> dict[str, int]:
    pooled = [e for e in features.events if config.pools(e, layer)]
    fed = pooled if config.pffn == "gdpa" else []
    attending = [e for e in features.events if config.attends(e, layer)]
    pool = _plain_pool if config.pooling == "pma" else _seed_pool
    return {
        "trunk.summarize": _summarize(config, features) if fed else 0,
        "trunk.feed_forward": sum(_feed_forward(config, features, e) for e in fed),
        "trunk.pool": sum(pool(config, e) for e in pooled),
        INTERACTION: _interaction(config, features),
        "trunk.attention": sum(2 * e.width + 4 * e.width**2 for e in attending),
    }


def _summarize(config: ModelConfig, features: FeatureSet) -> int:
    tokens = num_context_tokens(features)
    if config.gdpa_context == "user":
        tokens = len(features.sparse) - num_ad_tokens(features)
    norm = 2 * config.width if config.summarize_norm else 0
    return norm + tokens * config.summary_tokens + _linear(config.width, config.width)


def _feed_forward(config: ModelConfig, features: FeatureSet, event: EventType) -> int:
    width, num_ad = event.width, num_ad_tokens(features)
    short = config.gdpa_short_path if num_ad else 0
    generate = _linear(config.width, 2 * width) + _linear(2 * width, 2 * width)
    if short:
        generate += _linear(num_ad * config.width, short * 2 * width)
    return generate + 2 * width + 2 * width**2 + (event.heads if config.qk_norm else 0)


def _seed_attention(seeds: int, width: int) -> int:
    return seeds * width + 4 * width + 3 * width**2


def _plain_pool(config: ModelConfig, event: EventType) -> int:
    return _seed_attention(event.tokens, event.width) + event.width * config.width


def _seed_pool(config: ModelConfig, event: EventType) -> int:
    rank, tokens, width = config.sumkron_rank, event.tokens, event.width
    attend = _seed_attention(config.seeds, width)
    if rank:
        return attend + tokens * rank * config.seeds + rank * width * config.width
    return attend + tokens * config.seeds + (width != config.width) * width * config.width


def _experts(config: ModelConfig, features: FeatureSet) -> list[tuple[int, int]]:
    """Tokens in and out of every Wukong expert of a layer."""
    num_out = num_context_tokens(features)
    num_in = num_out + num_pooled_tokens(features)
    experts = min(config.wukong_experts, num_out)
    return [(_share(num_in, experts, i), _share(num_out, experts, i)) for i in range(experts)]


def _share(total: int, parts: int, index: int) -> int:
    return total // parts + (index < total % parts)


def _interaction(config: ModelConfig, features: FeatureSet) -> int:
    width, rank, n, mlp = config.width, config.fm_rank, config.summary_tokens, config.mlp_width
    total = 0
    for num_in, num_out in _experts(config, features):
        pairs = max(1, num_out // 2)
        attentive = n * num_in + _linear(n * width, num_in * rank) + 2 * num_in * rank
        total += attentive + _linear(num_in * rank, mlp) + _linear(mlp, pairs * width)
        total += (num_out - pairs) * num_in + num_out * num_in + 2 * width
    return total


def _products(config: ModelConfig, features: FeatureSet, event: EventType) -> int:
    if not num_products(features, config):
        return 0
    decays, products = config.ad_product_decays, config.ad_products
    mix = _linear(decays * history_width(event, config), products)
    return decays + mix + _linear(num_ad_tokens(features) * config.width, products)


def _heads(
    config: ModelConfig, features: FeatureSet, num_objectives: int, num_surfaces: int
) -> int:
    mlp, out = config.mlp_width, num_objectives * config.head_width
    read = read_width(features, config) + len(features.dense_columns)
    adapters = num_surfaces * mlp * (2 * config.adapter_rank + 1) if config.surface_experts else 0
    biases = num_surfaces * num_objectives
    return _linear(read, mlp) + adapters + _linear(mlp, out) + out + biases


def _compressor(config: ModelConfig, features: FeatureSet) -> int:
    read, mlp, code = (
        represented_width(features, config),
        config.mlp_width,
        config.representation_dim,
    )
    encode = _linear(read, mlp) + _linear(mlp, code)
    return encode + _linear(code, mlp) + _linear(mlp, read)


def _kept_by_interaction(config: ModelConfig, features: FeatureSet) -> int:
    width, rank, n = config.width, config.fm_rank, config.summary_tokens
    total = 0
    for num_in, num_out in _experts(config, features):
        pairs = max(1, num_out // 2)
        mixed = (n + 2 * num_out - pairs) * width
        factors = 3 * num_in * rank + width * rank + 2 * config.mlp_width
        total += 2 * num_in * width + mixed + factors + (pairs + 2 * num_out) * width
    return total


def _kept_by_gdpa(
    config: ModelConfig, features: FeatureSet, event: EventType, length: float
) -> float:
    short = config.gdpa_short_path if num_ad_tokens(features) else 0
    keys = config.summary_tokens + short
    generated = 4 * event.width * config.summary_tokens + 2 * event.width * keys
    return generated + 2 * event.heads * keys * event.width + 5 * event.width * length


def _kept_by_pooling(config: ModelConfig, event: EventType, length: float) -> float:
    seeds = event.tokens if config.pooling == "pma" else config.seeds
    attended = seeds * event.width * (event.heads + 1) + event.width * length
    mixed = 0 if config.pooling == "pma" else config.sumkron_rank * event.tokens * event.width
    return attended + mixed + event.tokens * config.width
