"""Config of the foundation model's training."""

from __future__ import annotations

from dataclasses import dataclass, field

from model.budgets import Keep
from model.config import require
from model.layout import Layout


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Optimizers, batches, ranks and checkpoints; `batch_size` is that of all ranks together.

    `keep`: what backward does not compute again; `peak_gflops`: of one rank's device, what MFU is
    measured against; 0 measures it by a large product when training starts.
    """

    batch_size: int = 512
    dense_lr: float = 3e-3
    sparse_lr: float = 3e-2
    weight_decay: float = 0.0
    warmup_steps: int = 50
    clip_norm: float = 5.0
    ema_decay: float = 0.98
    epochs: int = 1
    ranks: int = 1
    threads: int = 1
    zero_stage: int = 0
    layout: Layout = field(default_factory=Layout)
    keep: Keep = field(default_factory=Keep)
    peak_gflops: float = 0.0
    checkpoint_every_s: float = 60.0
    seed: int = 0

    def __post_init__(self) -> None:
        require(self.batch_size > 0, "train.batch_size", "above 0", self.batch_size, "use 512")
        self.layout.check(self.ranks, self.zero_stage)
        require(
            self.peak_gflops >= 0,
            "train.peak_gflops",
            "at least 0",
            self.peak_gflops,
            "use 0 to measure it",
        )
        require(0 <= self.ema_decay < 1, "train.ema_decay", "in [0, 1)", self.ema_decay, "use 0.98")
