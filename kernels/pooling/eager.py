"""Pooling on dense buckets of a `Layout`."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.layout import Bucket, Layout


def seed_attention(q_SHK: Tensor, k_PHK: Tensor, v_PHK: Tensor, layout: Layout) -> Tensor:
    """[B, S, H, K]: softmax over each row's events; the seeds' scores are one flat product."""
    num_seeds, heads, width = q_SHK.shape
    score_PHS = torch.matmul(
        k_PHK.transpose(0, 1), (q_SHK * width**-0.5).permute(1, 2, 0)
    ).transpose(0, 1)
    parts = []
    for bucket in layout.buckets:
        score_bHST = bucket.block(score_PHS).permute(0, 2, 3, 1)
        weight_bHST = _hide(score_bHST, bucket, (1, 1)).softmax(-1)
        v_bHTK = bucket.block(v_PHK).transpose(1, 2)
        parts.append(torch.matmul(weight_bHST, v_bHTK).transpose(1, 2))
    if not parts:
        return v_PHK.new_zeros(layout.num_rows, num_seeds, heads, width)
    return layout.put_rows(torch.cat(parts))


def jagged_pool(
    values_PD: Tensor, layout: Layout, *, mode: str = "mean", logits_P: Tensor | None = None
) -> Tensor:
    """[B, D]: mean, sum or softmax-weighted sum of each row's events; empty rows give zeros."""
    parts = []
    for bucket in layout.buckets:
        if mode == "softmax" and logits_P is not None:
            weight_bT = _hide(bucket.block(logits_P), bucket, ()).softmax(-1)
        elif bucket.valid_bT is None:
            weight_bT = values_PD.new_ones(bucket.num_rows, bucket.length)
        else:
            weight_bT = bucket.valid_bT.to(values_PD.dtype)
        if mode == "mean":
            weight_bT = weight_bT / weight_bT.sum(1, keepdim=True)
        parts.append(torch.matmul(weight_bT[:, None], bucket.block(values_PD))[:, 0])
    if not parts:
        return values_PD.new_zeros(layout.num_rows, values_PD.shape[1])
    return layout.put_rows(torch.cat(parts))


def _hide(score_bXT: Tensor, bucket: Bucket, between: tuple[int, ...]) -> Tensor:
    """Scores with free slots at -inf; `between` fills the dimensions between b and T."""
    if bucket.valid_bT is None:
        return score_bXT
    free = ~bucket.valid_bT.view(bucket.num_rows, *between, bucket.length)
    return score_bXT.masked_fill(free, float("-inf"))
