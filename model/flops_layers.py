"""Forward FLOPs of the layers that several trunks are made of; standard library only."""

from __future__ import annotations

from typing import Any

from model.config import EventType, ModelConfig


def linear(num_inputs: int, num_outputs: int) -> int:
    """A matrix product with one row."""
    return 2 * num_inputs * num_outputs


def wukong_layer(config: ModelConfig, num_in: int, num_out: int) -> int:
    """A Wukong layer from `num_in` tokens to `num_out`."""
    width, rank, n = config.width, config.fm_rank, config.summary_tokens
    pairs = max(1, num_out // 2)
    attentive = n * num_in * width + n * width * num_in * rank
    products = 2 * num_in * width * rank
    mlp = config.mlp_width * (num_in * rank + pairs * width)
    along_tokens = (num_out - pairs + num_out) * num_in * width
    return 2 * (attentive + products + mlp + along_tokens)


def seed_attention(event: EventType, seeds: int, length: Any) -> Any:
    """Learnable seeds that read a tower."""
    return 4 * event.heads * seeds * event.width * length + 2 * seeds * event.width**2


def plain_pool(config: ModelConfig, event: EventType, length: Any) -> Any:
    """PMA of a tower to `event.tokens` tokens."""
    project = 2 * event.tokens * event.width * config.width
    return seed_attention(event, event.tokens, length) + project
