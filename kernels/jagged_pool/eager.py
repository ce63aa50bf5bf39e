"""Pooling of jagged rows on the dense buckets of a `Layout`.

Suffixes: P slots, B rows, D columns; b rows of a bucket, T its length.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.layout import Bucket, Layout


def jagged_pool(
    values_PD: Tensor, layout: Layout, *, mode: str = "mean", logits_P: Tensor | None = None
) -> Tensor:
    """[B, D]: mean, sum or softmax-weighted sum of each row's events; empty rows give zeros."""
    if not layout.buckets:
        return values_PD.new_zeros(layout.num_rows, values_PD.shape[1])
    if mode == "softmax" and logits_P is not None:
        logits = layout.blocks(logits_P)
        weights = [b.hidden(x).softmax(1) for b, x in zip(layout.buckets, logits, strict=True)]
    else:
        weights = [_ones(b, values_PD) for b in layout.buckets]
    if mode == "mean":
        weights = [w_bT / w_bT.sum(1, keepdim=True) for w_bT in weights]
    parts = [
        torch.bmm(w_bT[:, None], x_bTD)[:, 0]
        for w_bT, x_bTD in zip(weights, layout.blocks(values_PD), strict=True)
    ]
    return layout.put_rows(torch.cat(parts))


def _ones(bucket: Bucket, like: Tensor) -> Tensor:
    """1 where a slot holds an event."""
    if bucket.valid_bT is None:
        return like.new_ones(bucket.num_rows, bucket.length)
    return bucket.valid_bT.to(like.dtype)
