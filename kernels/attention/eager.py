"""Jagged attention on dense buckets of a `Layout`.

Short rows take one explicit softmax per bucket (fewer passes over memory than flash attention
needs at these sizes); long ones go through scaled_dot_product_attention in query blocks, so that a
window's cost stays linear in the row's length.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.layout import Bucket, Layout

SHORT = 128


def rotate(x_PHK: Tensor, angle_PR: Tensor) -> Tensor:
    """Turn pair r = (x[2r], x[2r+1]) of every head by angle r (R = K / 2)."""
    shape_PHR2 = (*x_PHK.shape[:2], angle_PR.shape[1], 2)
    pairs_PHR = torch.view_as_complex(x_PHK.contiguous().view(shape_PHR2))
    turn_PR = torch.polar(torch.ones_like(angle_PR), angle_PR)
    return torch.view_as_real(pairs_PHR * turn_PR[:, None]).flatten(-2)


def jagged_attention(
    q_PHK: Tensor, k_PHK: Tensor, v_PHK: Tensor, layout: Layout, *, window: int | None = None
) -> Tensor:
    """softmax(q k^T / sqrt(K)) v within each row, bucket by bucket."""
    parts = []
    blocks = (layout.blocks(x) for x in (q_PHK, k_PHK, v_PHK))
    for bucket, *qkv in zip(layout.buckets, *blocks, strict=True):
        q, k, v = (x_bTHK.transpose(1, 2) for x_bTHK in qkv)
        short = bucket.length <= SHORT
        out_bHTK = _short(q, k, v, bucket, window) if short else _long(q, k, v, bucket, window)
        parts.append(out_bHTK.transpose(1, 2).flatten(0, 1))
    if not parts:
        return torch.zeros_like(v_PHK)
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def block_attention(
    q_PHK: Tensor, k_PHK: Tensor, v_PHK: Tensor, layout: Layout, *, block: int
) -> Tensor:
    """Attention within blocks of each row: whole blocks and the rests become rows of their own."""
    parts = []
    blocks = (layout.blocks(x) for x in (q_PHK, k_PHK, v_PHK))
    for bucket, *qkv in zip(layout.buckets, *blocks, strict=True):
        whole = bucket.length - bucket.length % block
        spans = [(0, whole, block), (whole, bucket.length, bucket.length - whole)]
        pieces = [_tiles(bucket, qkv, *span) for span in spans if span[0] < span[1]]
        parts.append(torch.cat(pieces, dim=1).flatten(0, 1))
    return torch.cat(parts) if parts else torch.zeros_like(v_PHK)


def _tiles(bucket: Bucket, qkv: list[Tensor], begin: int, end: int, size: int) -> Tensor:
    """Attention of slots [begin, end) of a bucket in tiles of `size`: [b, end - begin, H, K]."""
    valid = None
    if bucket.valid_bT is not None:
        valid = bucket.valid_bT[:, begin:end].reshape(-1, size)
    q, k, v = (x[:, begin:end].reshape(-1, size, *x.shape[2:]).transpose(1, 2) for x in qkv)
    tiles = Bucket(q.shape[0], size, valid)
    out_bHTK = _short(q, k, v, tiles, None) if size <= SHORT else _long(q, k, v, tiles, None)
    return out_bHTK.transpose(1, 2).reshape(bucket.num_rows, end - begin, *out_bHTK.shape[1::2])


def _short(q: Tensor, k: Tensor, v: Tensor, bucket: Bucket, window: int | None) -> Tensor:
    mask_b1TT = _mask(bucket, window, 0, bucket.length, 0, bucket.length)
    bias = None
    if mask_b1TT is not None:
        bias = q.new_zeros(mask_b1TT.shape).masked_fill_(~mask_b1TT, float("-inf"))
    return _SoftmaxAttention.apply(q.contiguous(), k.contiguous(), v.contiguous(), bias)


def _long(q: Tensor, k: Tensor, v: Tensor, bucket: Bucket, window: int | None) -> Tensor:
    length = bucket.length
    step = length if window is None else max(64, window)
    parts = []
    for begin in range(0, length, step):
        end = min(begin + step, length)
        low = 0 if window is None else max(0, begin - window)
        high = length if window is None else min(length, end + window)
        mask = _mask(bucket, window, begin, end, low, high)
        parts.append(
            F.scaled_dot_product_attention(
                q[:, :, begin:end], k[:, :, low:high], v[:, :, low:high], attn_mask=mask
            )
        )
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)


def _mask(
    bucket: Bucket, window: int | None, begin: int, end: int, low: int, high: int
) -> Tensor | None:
    """Which keys [low, high) the queries [begin, end) may see; free slots see themselves only."""
    banded = window is not None and window < max(end - 1 - low, high - 1 - begin)
    if bucket.valid_bT is None and not banded:
        return None
    gap_TT = torch.arange(begin, end)[:, None] - torch.arange(low, high)[None, :]
    mask: Tensor = gap_TT.abs() <= (window if window is not None else bucket.length)
    mask = mask[None, None]
    if bucket.valid_bT is not None:
        mask = (mask & bucket.valid_bT[:, None, None, low:high]) | (gap_TT == 0)
    return mask


class _SoftmaxAttention(torch.autograd.Function):
    """softmax(q k^T / sqrt(K) + bias) v with the probabilities kept and all passes in place."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
        """Shapes [b, H, T, K]; bias broadcasts to [b, H, T, T]."""
        ctx.scale = q.shape[-1] ** -0.5
        p = torch.matmul(q, k.transpose(-1, -2)).mul_(ctx.scale)
        if bias is not None:
            p.add_(bias)
        torch.softmax(p, -1, out=p)
        ctx.save_for_backward(q, k, v, p)
        return torch.matmul(p, v)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        """dV = P^T dO; dS = P * (dO V^T - rowsum); dQ = dS K; dK = dS^T Q."""
        q, k, v, p = ctx.saved_tensors
        grad = grad.contiguous()
        dv = torch.matmul(p.transpose(-1, -2), grad)
        ds = torch.matmul(grad, v.transpose(-1, -2))
        ds = torch._softmax_backward_data(ds, p, -1, p.dtype).mul_(ctx.scale)
        return torch.matmul(ds, k), torch.matmul(ds.transpose(-1, -2), q), dv, None
