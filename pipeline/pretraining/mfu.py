"""Model FLOPs utilization: what training needs of a device beside what the device can do.

A step needs three times the forward FLOPs (backward makes two products for each of forward's,
arXiv 2204.02311, appendix B); what activation checkpointing computes again is not counted, nor is
anything else that the model does not ask for.
"""

from __future__ import annotations

import time
from typing import Final

import numpy as np
import torch

from model.flops import flops_per_row
from pipeline.mixing.loader import Loader
from pipeline.run.config import RunConfig

STEP_FLOPS: Final = 3.0  # times those of forward
PROBE: Final = 1_024  # width of the product that shows what the device can do
PROBES: Final = 5


def training_gflop(config: RunConfig, segments: list[Loader]) -> float:
    """GFLOP of a training step per row: the mean over all rows, from their true lengths."""
    counts = len(config.objectives), len(config.surfaces)
    flops = 0.0
    for segment in segments:
        each = flops_per_row(config.model, config.features, counts[0], segment.lengths, counts[1])
        flops += float(np.broadcast_to(each, segment.num_rows).sum())
    return STEP_FLOPS * flops / max(sum(s.num_rows for s in segments), 1) / 1e9


def peak_gflops(config: RunConfig) -> float:
    """What a rank's device can do a second: `train.peak_gflops`, or the best of large products."""
    if config.train.peak_gflops:
        return config.train.peak_gflops
    left, right = torch.randn(PROBE, PROBE), torch.randn(PROBE, PROBE)
    best = 0.0
    for _ in range(PROBES):
        began = time.perf_counter()
        torch.mm(left, right)
        best = max(best, 2e-9 * PROBE**3 / (time.perf_counter() - began))
    return best
