"""The size dial: a complete `ModelConfig` for a word. Standard library only."""

from __future__ import annotations

from model.config import ConfigError, ModelConfig

SIZES = ("smoke", "small", "base", "large")


def model_config(size: str) -> ModelConfig:
    """The shape of a size; smoke and small share one, and differ in their data."""
    if size in ("smoke", "small"):
        return ModelConfig()
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
    if size == "large":
        return ModelConfig(
            embedding_dim=128,
            width=256,
            layers=8,
            heads=8,
            summary_tokens=32,
            seeds=64,
            sumkron_rank=8,
            wukong_experts=2,
            fm_rank=64,
            mlp_width=1_024,
            head_width=256,
            adapter_rank=32,
            representation_dim=64,
        )
    raise ConfigError(f"size must be one of {list(SIZES)}, got {size!r}; choose one")
