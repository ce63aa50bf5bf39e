"""Softmax attention over jagged rows, as the formula reads; loops over rows and heads."""

from __future__ import annotations

import torch
from torch import Tensor


def rotate(x_EHK: Tensor, angle_ER: Tensor) -> Tensor:
    """Turn pair r = (x[2r], x[2r+1]) of every head by angle r (R = K / 2)."""
    a, b = x_EHK[..., 0::2], x_EHK[..., 1::2]
    cos, sin = angle_ER.cos()[:, None], angle_ER.sin()[:, None]
    return torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(-2)


def jagged_attention(
    q_EHK: Tensor,
    k_EHK: Tensor,
    v_EHK: Tensor,
    lengths_B: Tensor,
    *,
    window: int | None = None,
    block: int | None = None,
) -> Tensor:
    """softmax(q k^T / sqrt(K)) v within each row.

    With `window`, over |i - j| <= window; with `block`, over i // block == j // block.
    """
    rows, start = [], 0
    for length in lengths_B.tolist():
        part = slice(start, start + length)
        start += length
        score_Htt = torch.einsum("ihk,jhk->hij", q_EHK[part], k_EHK[part]) * q_EHK.shape[-1] ** -0.5
        at = torch.arange(length)
        if window is not None:
            far = (at[:, None] - at[None, :]).abs() > window
            score_Htt = score_Htt.masked_fill(far, float("-inf"))
        if block is not None:
            apart = at[:, None] // block != at[None, :] // block
            score_Htt = score_Htt.masked_fill(apart, float("-inf"))
        rows.append(torch.einsum("hij,jhk->ihk", score_Htt.softmax(-1), v_EHK[part]))
    return torch.cat(rows) if rows else torch.zeros_like(q_EHK)
