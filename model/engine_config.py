"""What the training engine needs to know of a run, and what it refuses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from model.budgets import Keep
from model.config import require
from model.layout import Layout


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Optimizers, batch and layout; `batch_size` is that of all ranks together."""

    batch_size: int
    dense_lr: float
    sparse_lr: float
    weight_decay: float = 0.0
    warmup_steps: int = 0
    clip_norm: float = 0.0
    ema_decay: float = 0.98
    ranks: int = 1
    zero_stage: int = 0
    layout: Layout = field(default_factory=Layout)
    keep: Keep = field(default_factory=Keep)
    optimizer: Literal["adaptive", "sgd"] = "adaptive"
    gradient_accumulation: int = 1
    precision: Literal["float32", "float16"] = "float32"

    def __post_init__(self) -> None:
        require(
            self.gradient_accumulation == 1,
            "train.gradient_accumulation",
            "1",
            self.gradient_accumulation,
            "tables update in every backward; raise train.batch_size instead",
        )
        require(
            self.precision == "float32",
            "train.precision",
            "float32",
            self.precision,
            "loss scaling would reach the tables' optimizer",
        )
        require(
            self.layout.expert == 1 or self.keep.interaction == 1,
            "train.keep.interaction",
            "1.0 with expert ranks",
            self.keep.interaction,
            "running an interaction again would exchange its tokens again",
        )
        row_sums = self.optimizer == "adaptive"
        self.layout.check(self.ranks, self.zero_stage, row_sums=row_sums)
