"""Losses of the foundation model. Suffixes: B rows, K objectives."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from model.batch import Batch

MIN_SHARE = 1 / 8


@dataclass(frozen=True, slots=True)
class Joint:
    """The batches of all ranks as one: rows, and the weight of the labels by objective."""

    num_rows: float
    weight_K: Tensor


def label_loss(
    logits_BK: Tensor, batch: Batch, task_weight_K: Tensor, joint: Joint | None = None
) -> Tensor:
    """Sum over objectives of the weighted mean BCE over mature labels.

    Rows whose label is masked take no part. The mean's denominator is at least an eighth of the
    batch, so that a batch with few mature labels of an objective does not make them loud. With
    `joint` the mean is that of all ranks' rows, and this what one rank adds to it.
    """
    weight_BK = batch.weight_BK * batch.mask_BK
    loss_BK = F.binary_cross_entropy_with_logits(logits_BK, batch.labels_BK, reduction="none")
    weight_K = weight_BK.sum(0) if joint is None else joint.weight_K
    num_rows = batch.num_rows if joint is None else joint.num_rows
    total_K = weight_K.clamp_min(MIN_SHARE * num_rows)
    return ((loss_BK * weight_BK).sum(0) / total_K * task_weight_K).sum()


def prefix_loss(decode: list[Tensor], target_BX: Tensor) -> Tensor:
    """Mean squared error of each prefix's reconstruction, averaged over the prefixes."""
    errors = [F.mse_loss(x_BX, target_BX) for x_BX in decode]
    return torch.stack(errors).mean()
