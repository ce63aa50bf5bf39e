"""Jagged attention on dense buckets of a `Layout`.

Short rows take one explicit softmax per bucket (fewer passes over memory than flash attention
needs at these sizes). Long rows go through flash attention: under a window as flat tiles
(banded.py), else row by row, or a whole bucket at once where its rows are equally long.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.attention.banded import TILE, banded_attention
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
    """softmax(q k^T / sqrt(K)) v within each row; free slots hold anything finite."""
    if not layout.buckets:
        return torch.zeros_like(v_PHK)
    far = [b for b in layout.buckets if window is not None and b.length > _whole(window)]
    near = len(layout.buckets) - len(far)
    slots = sum(b.num_rows * b.length for b in layout.buckets[:near])
    if not far:
        return _buckets((q_PHK, k_PHK, v_PHK), layout, near, window)
    row_P = _row_of_slots(far)
    if near == 0:
        return banded_attention(q_PHK, k_PHK, v_PHK, row_P, window or 0)
    parts = (x.split([slots, len(row_P)]) for x in (q_PHK, k_PHK, v_PHK))
    heads, (q, k, v) = zip(*parts, strict=True)
    close_PHK = _buckets(heads, layout, near, window)
    return torch.cat([close_PHK, banded_attention(q, k, v, row_P, window or 0)])


def _whole(window: int) -> int:
    """The longest row whose whole square costs no more than a band in tiles."""
    return max(SHORT, 2 * window + TILE)


def _row_of_slots(buckets: list[Bucket]) -> Tensor:
    """A number per row for its slots; each free slot has one of its own, below zero."""
    parts, first = [], 0
    for bucket in buckets:
        row_bT = torch.arange(first, first + bucket.num_rows)[:, None].expand(-1, bucket.length)
        if bucket.valid_bT is not None:
            own_bT = -1 - torch.arange(row_bT.numel()).view(row_bT.shape)
            row_bT = torch.where(bucket.valid_bT, row_bT, own_bT)
        parts.append(row_bT.flatten())
        first += bucket.num_rows
    return torch.cat(parts)


def _buckets(qkv: tuple[Tensor, ...], layout: Layout, count: int, window: int | None) -> Tensor:
    """The first `count` buckets, each as a whole or row by row."""
    parts = []
    buckets = layout.buckets[:count]
    sizes = [b.num_rows * b.length for b in buckets]
    split = zip(*(x.split(sizes) for x in qkv), strict=True)
    for bucket, lengths, tensors in zip(buckets, layout.row_lengths(), split, strict=False):
        banded = window is not None and window < bucket.length - 1
        if bucket.length > SHORT and bucket.valid_bT is not None and not banded:
            parts.append(_by_row(tensors, bucket, lengths))
            continue
        shape = (bucket.num_rows, bucket.length, *tensors[0].shape[1:])
        q, k, v = (x.view(shape).transpose(1, 2) for x in tensors)
        run = _short if bucket.length <= SHORT else _long
        parts.append(run(q, k, v, bucket, window).transpose(1, 2).flatten(0, 1))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _by_row(qkv: tuple[Tensor, ...], bucket: Bucket, lengths: list[int]) -> Tensor:
    """Unequal long rows one by one: no padding and no mask; free slots are 0."""
    spans = [size for n in lengths for size in (n, bucket.length - n)]
    pieces = [x.transpose(0, 1)[None].split(spans, dim=2) for x in qkv]
    parts = []
    for q, k, v in zip(*(p[::2] for p in pieces), strict=True):
        out_THK = F.scaled_dot_product_attention(q, k, v)[0].transpose(0, 1)
        parts += [out_THK, out_THK.new_zeros(bucket.length - len(out_THK), *out_THK.shape[1:])]
    return torch.cat(parts)


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
        parts.append(_joined(pieces, 1).flatten(0, 1))
    return _joined(parts, 0) if parts else torch.zeros_like(v_PHK)


def _joined(parts: list[Tensor], dim: int) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim)


def _tiles(bucket: Bucket, qkv: list[Tensor], begin: int, end: int, size: int) -> Tensor:
    """Attention of slots [begin, end) of a bucket in tiles of `size`: [b, end - begin, H, K]."""
    valid = None
    if bucket.valid_bT is not None:
        valid = bucket.valid_bT[:, begin:end].reshape(-1, size)
    q, k, v = (x[:, begin:end].reshape(-1, size, *x.shape[2:]).transpose(1, 2) for x in qkv)
    tiles = Bucket(q.shape[0], size, valid)
    # blocks of long rows are many: as views through flash attention they need no copies
    run = _short if bucket.length <= SHORT else _long
    out_bHTK = run(q, k, v, tiles, None)
    return out_bHTK.transpose(1, 2).reshape(bucket.num_rows, end - begin, *out_bHTK.shape[1::2])


def _short(q: Tensor, k: Tensor, v: Tensor, bucket: Bucket, window: int | None) -> Tensor:
    mask_b1TT = _mask(bucket, window)
    bias = None
    if mask_b1TT is not None:
        bias = q.new_zeros(mask_b1TT.shape).masked_fill_(~mask_b1TT, float("-inf"))
    return _SoftmaxAttention.apply(q.contiguous(), k.contiguous(), v.contiguous(), bias)


def _long(q: Tensor, k: Tensor, v: Tensor, bucket: Bucket, window: int | None) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=_mask(bucket, window))


def _mask(bucket: Bucket, window: int | None) -> Tensor | None:
    """Which keys a query may see, [b or 1, 1, T, T]; free slots see themselves only."""
    banded = window is not None and window < bucket.length - 1
    if bucket.valid_bT is None and not banded:
        return None
    at_T = torch.arange(bucket.length)
    gap_TT = at_T[:, None] - at_T
    mask: Tensor = gap_TT.abs() <= (window if window is not None else bucket.length)
    mask = mask[None, None]
    if bucket.valid_bT is not None:
        mask = (mask & bucket.valid_bT[:, None, None]) | (gap_TT == 0)
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
