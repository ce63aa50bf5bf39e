"""How many numbers a trunk hands to the heads and to the compressor: standard library only."""

from __future__ import annotations

from model.config import EventType, FeatureSet, ModelConfig

# InterFormer's summary of a sequence (arXiv 2411.09852): prepended, pooled and latest tokens
CLS_TOKENS, PMA_TOKENS, RECENT_TOKENS = 4, 2, 2
SUMMARY = CLS_TOKENS + PMA_TOKENS + RECENT_TOKENS


def num_context_tokens(features: FeatureSet) -> int:
    """Tokens of X at the input: one per sparse feature, one for all numbers."""
    return len(features.sparse) + bool(features.dense_columns)


def num_ad_tokens(features: FeatureSet) -> int:
    """Context tokens that belong to the ad."""
    return sum(feature.scope == "ad" for feature in features.sparse)


def num_pooled_tokens(features: FeatureSet) -> int:
    """Tokens of H: what the towers are pooled to."""
    return sum(event.tokens for event in features.events)


def flat_width(features: FeatureSet, config: ModelConfig) -> int:
    """Context tokens and one pooled vector per tower, side by side: what DCNv2 and DIN read."""
    pooled = sum(event.width for event in features.events)
    return num_context_tokens(features) * config.width + pooled


def num_products(features: FeatureSet, config: ModelConfig) -> int:
    """Products of histories and the ad that the heads read beside a trunk."""
    has = config.arch == "kunlun" or config.ad_products_for == "all"
    if not has or num_ad_tokens(features) == 0:
        return 0
    return config.ad_products * len(features.events)


def history_width(event: EventType, config: ModelConfig) -> int:
    """Numbers of an event that enter these products: its attributes' embeddings and, if there are
    several, their own product."""
    attributes = len(event.attributes)
    return (attributes + (attributes > 1)) * config.embedding_dim


def read_width(features: FeatureSet, config: ModelConfig) -> int:
    """Numbers that the heads read, but for the dense inputs: a trunk's, and the products."""
    return _trunk_width(features, config) + num_products(features, config)


def _trunk_width(features: FeatureSet, config: ModelConfig) -> int:
    if config.arch == "dcnv2":
        return flat_width(features, config) + config.mlp_width
    if config.arch == "din":
        return config.mlp_width
    pooled = num_pooled_tokens(features)
    if config.arch == "interformer":
        pooled = SUMMARY * len(features.events)
    elif config.arch == "kunlun" and config.heads_read == "x":
        pooled = 0
    return (num_context_tokens(features) + pooled) * config.width


def represented_width(features: FeatureSet, config: ModelConfig) -> int:
    """Numbers that the compressor reads: a trunk's after some of its layers, and the products."""
    return _layers_width(features, config) + num_products(features, config)


def _layers_width(features: FeatureSet, config: ModelConfig) -> int:
    layers = len(config.representation_layers)
    if config.arch == "dcnv2":
        return layers * flat_width(features, config)
    if config.arch == "din":
        return layers * config.mlp_width
    tokens = num_context_tokens(features)
    if config.arch in ("wukong", "wukong_pma"):
        tokens += num_pooled_tokens(features)
    return layers * tokens * config.width
