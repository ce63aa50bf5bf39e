"""Jagged attention on a GPU: one pass over the keys that a tile of queries may see.

Suffixes: P slots, H heads, K head width, R = K / 2 pairs; in kernels T queries and N keys of a
tile. Kept for the backward pass are the inputs, the output and each query's log-sum; no sum depends
on the order of programs. Queries and keys may lie in layouts of their own: the same rows with
other lengths.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.layout import Layout
from kernels.tiles import accumulator, block_of, operand, tiles_of

TILE = 64
FULL, WINDOW, BLOCK = 0, 1, 2


def jagged_attention(
    q_PHK: Tensor,
    k_PHK: Tensor,
    v_PHK: Tensor,
    layout: Layout,
    *,
    window: int | None = None,
    block: int | None = None,
    angle_PR: Tensor | None = None,
    kv_layout: Layout | None = None,
    kv_angle_PR: Tensor | None = None,
) -> Tensor:
    """softmax(q k^T / sqrt(K)) v within each row, [P, H, K]; free slots are 0.

    `angle_PR` turns queries and keys on the way in (`rotate`); it gets no gradient. A query that
    sees no key gives 0.
    """
    layout.require_slots(q_PHK)
    (kv_layout or layout).require_slots(k_PHK, v_PHK)
    mode, reach = FULL, 0
    if window is not None:
        mode, reach = WINDOW, window
    elif block is not None:
        mode, reach = BLOCK, block
    angles = []
    if angle_PR is not None:
        if angle_PR.requires_grad:
            raise ValueError("angle_PR gets no gradient from a kernel; detach it or use rotate")
        angles = [angle_PR, angle_PR if kv_angle_PR is None else kv_angle_PR]
    out, _ = _attention(
        q_PHK.contiguous(),
        k_PHK.contiguous(),
        v_PHK.contiguous(),
        [a.contiguous() for a in angles],
        _tiles(layout) + _tiles(kv_layout or layout),
        mode,
        reach,
    )
    result: Tensor = out
    return result


def _tiles(layout: Layout) -> list[Tensor]:
    tiles = tiles_of(layout, TILE)
    return [tiles.begin_B, tiles.length_B, tiles.row_Z, tiles.start_Z]


@torch.library.custom_op("headwater::jagged_attention", mutates_args=())
def _attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    angles: list[torch.Tensor],
    tiles: list[torch.Tensor],
    mode: int,
    reach: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    out = torch.zeros_like(q)
    log_sum = q.new_zeros(q.shape[:2], dtype=_sum_dtype(q))
    if tiles[2].shape[0]:
        grid = (tiles[2].shape[0], q.shape[1])
        turns = angles or [q, q]
        _forward[grid](
            q, k, v, *turns, out, log_sum, *tiles[:6], **_options(q, angles, mode, reach)
        )
    return out, log_sum


@torch.library.custom_op("headwater::jagged_attention_backward", mutates_args=())
def _attention_backward(
    grad: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    log_sum: torch.Tensor,
    angles: list[torch.Tensor],
    tiles: list[torch.Tensor],
    mode: int,
    reach: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    grad_q, grad_k, grad_v = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    mean = (grad.to(log_sum.dtype) * out.to(log_sum.dtype)).sum(-1)
    inputs = (grad, q, k, v, *(angles or [q, q]), log_sum, mean)
    options = _options(q, angles, mode, reach)
    if tiles[2].shape[0]:
        grid = (tiles[2].shape[0], q.shape[1])
        _backward_q[grid](*inputs, grad_q, *tiles[:6], **options)
    if tiles[6].shape[0]:
        grid = (tiles[6].shape[0], q.shape[1])
        _backward_kv[grid](*inputs, grad_k, grad_v, *tiles[:2], *tiles[4:], **options)
    return grad_q, grad_k, grad_v


@_attention.register_fake
def _(q, k, v, angles, tiles, mode, reach):  # type: ignore[no-untyped-def]
    return torch.empty_like(q), q.new_empty(q.shape[:2], dtype=_sum_dtype(q))


@_attention_backward.register_fake
def _(grad, q, k, v, out, log_sum, angles, tiles, mode, reach):  # type: ignore[no-untyped-def]
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def _keep(ctx, inputs, output):  # type: ignore[no-untyped-def]
    q, k, v, angles, tiles, ctx.mode, ctx.reach = inputs
    ctx.num_angles = len(angles)
    ctx.save_for_backward(q, k, v, *output, *angles, *tiles)


def _gradients(ctx, grad, _):  # type: ignore[no-untyped-def]
    kept, rest = ctx.saved_tensors[:5], ctx.saved_tensors[5:]
    angles, tiles = rest[: ctx.num_angles], rest[ctx.num_angles :]
    grads = _attention_backward(
        grad.contiguous(), *kept, list(angles), list(tiles), ctx.mode, ctx.reach
    )
    return *grads, [None] * len(angles), [None] * len(tiles), None, None


_attention.register_autograd(_gradients, setup_context=_keep)


def _sum_dtype(q: Tensor) -> torch.dtype:
    return torch.float64 if q.dtype == torch.float64 else torch.float32


def _options(q: Tensor, angles: list[Tensor], mode: int, reach: int) -> dict[str, object]:
    return {
        "heads": q.shape[1],
        "scale": q.shape[2] ** -0.5,
        "reach": reach,
        "K": q.shape[2],
        "WIDTH": block_of(q.shape[2]),
        "TILE": TILE,
        "MODE": mode,
        "TURNED": bool(angles),
        "OPERAND": operand(q.dtype),
        "SUM": accumulator(q.dtype),
    }


@triton.jit
def _span(start, length, reach, TILE: tl.constexpr, MODE: tl.constexpr):
    """First and last partner of the tile that begins at `start`; the relation is symmetric."""
    if MODE == 1:
        return tl.maximum(start - reach, 0), tl.minimum(start + TILE + reach, length)
    elif MODE == 2:
        low = start // reach * reach
        high = ((start + TILE - 1) // reach + 1) * reach
        return tl.minimum(low, length), tl.minimum(high, length)
    else:
        return length * 0, length


@triton.jit
def _meet(i, j, reach, MODE: tl.constexpr):
    """Which pairs take part."""
    if MODE == 1:
        return tl.abs(i - j) <= reach
    elif MODE == 2:
        return i // reach == j // reach
    else:
        return i == i


@triton.jit
def _turned(x, angle, slot, inside, sign, K: tl.constexpr, WIDTH: tl.constexpr):
    """Pairs (x[2r], x[2r+1]) of a tile turned by sign * angle r of its slots."""
    r = tl.arange(0, WIDTH // 2)
    there = inside[:, None] & (r < K // 2)[None, :]
    turn = tl.load(angle + slot[:, None] * (K // 2) + r[None, :], mask=there, other=0.0)
    cos, sin = tl.cos(turn), tl.sin(turn) * sign
    even, odd = tl.split(tl.reshape(x, (x.shape[0], WIDTH // 2, 2)))
    both = tl.join(even * cos - odd * sin, even * sin + odd * cos)
    return tl.reshape(both, (x.shape[0], WIDTH))


@triton.jit
def _read(
    x,
    angle,
    slot,
    inside,
    head,
    heads,
    K: tl.constexpr,
    WIDTH: tl.constexpr,
    TURNED: tl.constexpr,
    OPERAND: tl.constexpr,
    SUM: tl.constexpr,
):
    """A tile of one head, turned where asked; zeros where no event is."""
    c = tl.arange(0, WIDTH)
    at = (slot[:, None] * heads + head) * K + c[None, :]
    tile = tl.load(x + at, mask=inside[:, None] & (c < K)[None, :], other=0.0)
    if TURNED:
        tile = _turned(tile.to(SUM), angle, slot, inside, 1.0, K, WIDTH)
    return tile.to(OPERAND)


@triton.jit
def _forward(
    q,
    k,
    v,
    angle_q,
    angle_k,
    out,
    log_sum,
    begin_B,
    length_B,
    row_Z,
    start_Z,
    kv_begin_B,
    kv_length_B,
    heads,
    scale,
    reach,
    K: tl.constexpr,
    WIDTH: tl.constexpr,
    TILE: tl.constexpr,
    MODE: tl.constexpr,
    TURNED: tl.constexpr,
    OPERAND: tl.constexpr,
    SUM: tl.constexpr,
):
    """O with a running maximum and sum per query."""
    tile, head = tl.program_id(0), tl.program_id(1)
    row = tl.load(row_Z + tile).to(tl.int64)
    start = tl.load(start_Z + tile)
    i = start + tl.arange(0, TILE)
    mine = i < tl.load(length_B + row)
    slot = tl.load(begin_B + row) + i
    q_TK = _read(q, angle_q, slot, mine, head, heads, K, WIDTH, TURNED, OPERAND, SUM)
    kv_begin, kv_length = tl.load(kv_begin_B + row), tl.load(kv_length_B + row).to(tl.int32)
    low, high = _span(start, kv_length, reach, TILE, MODE)
    top = tl.full((TILE,), float("-inf"), SUM)
    total = tl.zeros((TILE,), SUM)
    sum_TK = tl.zeros((TILE, WIDTH), SUM)
    for first in range(low, high, TILE):
        j = first + tl.arange(0, TILE)
        theirs = j < high
        k_NK = _read(k, angle_k, kv_begin + j, theirs, head, heads, K, WIDTH, TURNED, OPERAND, SUM)
        v_NK = _read(v, angle_k, kv_begin + j, theirs, head, heads, K, WIDTH, False, OPERAND, SUM)
        score = tl.dot(q_TK, tl.trans(k_NK), input_precision="ieee", out_dtype=SUM) * scale
        pair = theirs[None, :] & _meet(i[:, None], j[None, :], reach, MODE)
        score = tl.where(pair, score, float("-inf"))
        higher = tl.maximum(top, tl.max(score, 1))
        base = tl.where(higher == float("-inf"), 0.0, higher)  # no key so far
        weight = tl.exp(score - base[:, None])
        fade = tl.exp(top - base)
        total = total * fade + tl.sum(weight, 1)
        sum_TK = sum_TK * fade[:, None]
        sum_TK += tl.dot(weight.to(OPERAND), v_NK, input_precision="ieee", out_dtype=SUM)
        top = higher
    some = total != 0  # true of NaN as well, which must be seen
    result = tl.where(some[:, None], sum_TK / tl.where(some, total, 1.0)[:, None], 0.0)
    c = tl.arange(0, WIDTH)
    at = (slot[:, None] * heads + head) * K + c[None, :]
    tl.store(out + at, result.to(out.dtype.element_ty), mask=mine[:, None] & (c < K)[None, :])
    # infinite where no key was seen, so that exp(score - log_sum) is 0 in the backward pass
    kept = tl.where(some, top + tl.log(tl.where(some, total, 1.0)), float("inf"))
    tl.store(log_sum + slot * heads + head, kept, mask=mine)


@triton.jit
def _backward_q(
    grad,
    q,
    k,
    v,
    angle_q,
    angle_k,
    log_sum,
    mean,
    grad_q,
    begin_B,
    length_B,
    row_Z,
    start_Z,
    kv_begin_B,
    kv_length_B,
    heads,
    scale,
    reach,
    K: tl.constexpr,
    WIDTH: tl.constexpr,
    TILE: tl.constexpr,
    MODE: tl.constexpr,
    TURNED: tl.constexpr,
    OPERAND: tl.constexpr,
    SUM: tl.constexpr,
):
    """dQ = dS K / sqrt(K) with dS = P * (dO V^T - rowsum(dO * O)), turned back."""
    tile, head = tl.program_id(0), tl.program_id(1)
    row = tl.load(row_Z + tile).to(tl.int64)
    start = tl.load(start_Z + tile)
    i = start + tl.arange(0, TILE)
    mine = i < tl.load(length_B + row)
    slot = tl.load(begin_B + row) + i
    q_TK = _read(q, angle_q, slot, mine, head, heads, K, WIDTH, TURNED, OPERAND, SUM)
    grad_TK = _read(grad, angle_q, slot, mine, head, heads, K, WIDTH, False, OPERAND, SUM)
    top = tl.load(log_sum + slot * heads + head, mask=mine, other=float("inf"))
    middle = tl.load(mean + slot * heads + head, mask=mine, other=0.0)
    kv_begin, kv_length = tl.load(kv_begin_B + row), tl.load(kv_length_B + row).to(tl.int32)
    low, high = _span(start, kv_length, reach, TILE, MODE)
    sum_TK = tl.zeros((TILE, WIDTH), SUM)
    for first in range(low, high, TILE):
        j = first + tl.arange(0, TILE)
        theirs = j < high
        k_NK = _read(k, angle_k, kv_begin + j, theirs, head, heads, K, WIDTH, TURNED, OPERAND, SUM)
        v_NK = _read(v, angle_k, kv_begin + j, theirs, head, heads, K, WIDTH, False, OPERAND, SUM)
        score = tl.dot(q_TK, tl.trans(k_NK), input_precision="ieee", out_dtype=SUM) * scale
        pair = theirs[None, :] & _meet(i[:, None], j[None, :], reach, MODE)
        weight = tl.where(pair, tl.exp(score - top[:, None]), 0.0)
        pull = tl.dot(grad_TK, tl.trans(v_NK), input_precision="ieee", out_dtype=SUM)
        pull = (weight * (pull - middle[:, None])).to(OPERAND)
        sum_TK += tl.dot(pull, k_NK, input_precision="ieee", out_dtype=SUM)
    sum_TK *= scale
    if TURNED:
        sum_TK = _turned(sum_TK, angle_q, slot, mine, -1.0, K, WIDTH)
    c = tl.arange(0, WIDTH)
    at = (slot[:, None] * heads + head) * K + c[None, :]
    tl.store(grad_q + at, sum_TK.to(grad_q.dtype.element_ty), mask=mine[:, None] & (c < K)[None, :])


@triton.jit
def _backward_kv(
    grad,
    q,
    k,
    v,
    angle_q,
    angle_k,
    log_sum,
    mean,
    grad_k,
    grad_v,
    begin_B,
    length_B,
    kv_begin_B,
    kv_length_B,
    row_Y,
    start_Y,
    heads,
    scale,
    reach,
    K: tl.constexpr,
    WIDTH: tl.constexpr,
    TILE: tl.constexpr,
    MODE: tl.constexpr,
    TURNED: tl.constexpr,
    OPERAND: tl.constexpr,
    SUM: tl.constexpr,
):
    """dV = P^T dO and dK = dS^T Q / sqrt(K), turned back, for a tile of keys."""
    tile, head = tl.program_id(0), tl.program_id(1)
    row = tl.load(row_Y + tile).to(tl.int64)
    start = tl.load(start_Y + tile)
    j = start + tl.arange(0, TILE)
    mine = j < tl.load(kv_length_B + row)
    slot = tl.load(kv_begin_B + row) + j
    k_NK = _read(k, angle_k, slot, mine, head, heads, K, WIDTH, TURNED, OPERAND, SUM)
    v_NK = _read(v, angle_k, slot, mine, head, heads, K, WIDTH, False, OPERAND, SUM)
    begin, length = tl.load(begin_B + row), tl.load(length_B + row).to(tl.int32)
    low, high = _span(start, length, reach, TILE, MODE)
    sum_k = tl.zeros((TILE, WIDTH), SUM)
    sum_v = tl.zeros((TILE, WIDTH), SUM)
    for first in range(low, high, TILE):
        i = first + tl.arange(0, TILE)
        theirs = i < high
        q_TK = _read(q, angle_q, begin + i, theirs, head, heads, K, WIDTH, TURNED, OPERAND, SUM)
        grad_TK = _read(
            grad, angle_q, begin + i, theirs, head, heads, K, WIDTH, False, OPERAND, SUM
        )
        at = (begin + i) * heads + head
        top = tl.load(log_sum + at, mask=theirs, other=float("inf"))
        middle = tl.load(mean + at, mask=theirs, other=0.0)
        score = tl.dot(k_NK, tl.trans(q_TK), input_precision="ieee", out_dtype=SUM) * scale
        pair = mine[:, None] & theirs[None, :] & _meet(j[:, None], i[None, :], reach, MODE)
        weight = tl.where(pair, tl.exp(score - top[None, :]), 0.0)
        sum_v += tl.dot(weight.to(OPERAND), grad_TK, input_precision="ieee", out_dtype=SUM)
        pull = tl.dot(v_NK, tl.trans(grad_TK), input_precision="ieee", out_dtype=SUM)
        pull = (weight * (pull - middle[None, :])).to(OPERAND)
        sum_k += tl.dot(pull, q_TK, input_precision="ieee", out_dtype=SUM)
    sum_k *= scale
    if TURNED:
        sum_k = _turned(sum_k, angle_k, slot, mine, -1.0, K, WIDTH)
    c = tl.arange(0, WIDTH)
    at = (slot[:, None] * heads + head) * K + c[None, :]
    there = mine[:, None] & (c < K)[None, :]
    tl.store(grad_k + at, sum_k.to(grad_k.dtype.element_ty), mask=there)
    tl.store(grad_v + at, sum_v.to(grad_v.dtype.element_ty), mask=there)
