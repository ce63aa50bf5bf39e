"""Attention by seeds that all rows share; loops over rows."""

from __future__ import annotations

import torch
from torch import Tensor


def seed_attention(q_SHK: Tensor, k_EHK: Tensor, v_EHK: Tensor, lengths_B: Tensor) -> Tensor:
    """[B, S, H, K]: seed s reads row b by softmax(q k^T / sqrt(K)); empty rows give zeros."""
    rows, start = [], 0
    for length in lengths_B.tolist():
        k_THK, v_THK = k_EHK[start : start + length], v_EHK[start : start + length]
        start += length
        score_SHT = torch.einsum("shk,thk->sht", q_SHK, k_THK) * q_SHK.shape[-1] ** -0.5
        rows.append(torch.einsum("sht,thk->shk", score_SHT.softmax(-1), v_THK))
    return torch.stack(rows) if rows else q_SHK.new_zeros(0, *q_SHK.shape)
