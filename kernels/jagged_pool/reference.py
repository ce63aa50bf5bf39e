"""Mean, sum and softmax-weighted sum of jagged rows; loops over rows."""

from __future__ import annotations

import torch
from torch import Tensor


def jagged_pool(
    values_ED: Tensor, lengths_B: Tensor, *, mode: str = "mean", logits_E: Tensor | None = None
) -> Tensor:
    """[B, D]: mean, sum or softmax-weighted sum of each row's events; empty rows give zeros."""
    rows, start = [], 0
    for length in lengths_B.tolist():
        part_TD = values_ED[start : start + length]
        if mode == "softmax" and logits_E is not None:
            weight_T = logits_E[start : start + length].softmax(0)
            part_TD = part_TD * weight_T[:, None]
        start += length
        rows.append(part_TD.sum(0) / (max(length, 1) if mode == "mean" else 1))
    return torch.stack(rows) if rows else values_ED.new_zeros(0, values_ED.shape[1])
