"""Losses of the foundation model. Suffixes: B rows, K objectives."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from model.batch import Batch

MIN_SHARE = 1 / 8


def label_loss(logits_BK: Tensor, batch: Batch, task_weight_K: Tensor) -> Tensor:
    """Sum over objectives of the weighted mean BCE over mature labels.

    Rows whose label is masked take no part. The mean's denominator is at least an eighth of the
    batch, so that a batch with few mature labels of an objective does not make them loud.
    """
    weight_BK = batch.weight_BK * batch.mask_BK
    loss_BK = F.binary_cross_entropy_with_logits(logits_BK, batch.labels_BK, reduction="none")
    total_K = weight_BK.sum(0).clamp_min(MIN_SHARE * batch.num_rows)
    return ((loss_BK * weight_BK).sum(0) / total_K * task_weight_K).sum()


def prefix_loss(decode: list[Tensor], target_BX: Tensor) -> Tensor:
    """Mean squared error of each prefix's reconstruction, averaged over the prefixes."""
    errors = [F.mse_loss(x_BX, target_BX) for x_BX in decode]
    return torch.stack(errors).mean()
