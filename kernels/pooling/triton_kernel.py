"""Seeds that read jagged rows on a GPU: one program per row and head, one pass over its events.

Suffixes: P slots, B rows, S seeds, H heads, K head width; in kernels T events of a tile. The seeds'
gradient is one partial sum per row, added up in row order: no sum depends on the order of programs.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.layout import Layout
from kernels.tiles import accumulator, block_of, operand, tiles_of

TILE = 64


def seed_attention(q_SHK: Tensor, k_PHK: Tensor, v_PHK: Tensor, layout: Layout) -> Tensor:
    """softmax over each row's events of q k^T / sqrt(K), times v: [B, S, H, K]; empty rows 0."""
    layout.require_slots(k_PHK, v_PHK)
    tiles = tiles_of(layout, TILE)
    out, _ = _seeds(
        q_SHK.contiguous(),
        k_PHK.contiguous(),
        v_PHK.contiguous(),
        [tiles.begin_B, tiles.length_B, tiles.row_Z, tiles.start_Z],
    )
    result: Tensor = out
    return result


@torch.library.custom_op("headwater::seed_attention", mutates_args=())
def _seeds(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, tiles: list[torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    num_rows = tiles[0].shape[0]
    out = q.new_zeros(num_rows, *q.shape)
    log_sum = q.new_zeros(num_rows, *q.shape[:2], dtype=_sum_dtype(q))
    if num_rows:
        _forward[(num_rows, q.shape[1])](q, k, v, out, log_sum, *tiles[:2], **_options(q))
    return out, log_sum


@torch.library.custom_op("headwater::seed_attention_backward", mutates_args=())
def _seeds_backward(
    grad: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    log_sum: torch.Tensor,
    tiles: list[torch.Tensor],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    grad_k, grad_v = torch.zeros_like(k), torch.zeros_like(v)
    rows_q = torch.zeros_like(grad, dtype=log_sum.dtype)
    mean = (grad.to(log_sum.dtype) * out.to(log_sum.dtype)).sum(-1)
    inputs = (grad, q, k, v, log_sum, mean)
    if tiles[2].shape[0]:
        _backward_q[(tiles[0].shape[0], q.shape[1])](*inputs, rows_q, *tiles[:2], **_options(q))
        grid = (tiles[2].shape[0], q.shape[1])
        _backward_kv[grid](*inputs, grad_k, grad_v, *tiles, **_options(q))
    return rows_q.sum(0).to(q.dtype), grad_k, grad_v


@_seeds.register_fake
def _(q, k, v, tiles):  # type: ignore[no-untyped-def]
    num_rows = tiles[0].shape[0]
    return q.new_empty(num_rows, *q.shape), q.new_empty(num_rows, *q.shape[:2], dtype=_sum_dtype(q))


@_seeds_backward.register_fake
def _(grad, q, k, v, out, log_sum, tiles):  # type: ignore[no-untyped-def]
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def _keep(ctx, inputs, output):  # type: ignore[no-untyped-def]
    q, k, v, tiles = inputs
    ctx.save_for_backward(q, k, v, *output, *tiles)


def _gradients(ctx, grad, _):  # type: ignore[no-untyped-def]
    q, k, v, out, log_sum, *tiles = ctx.saved_tensors
    grads = _seeds_backward(grad.contiguous(), q, k, v, out, log_sum, tiles)
    return *grads, [None] * len(tiles)


_seeds.register_autograd(_gradients, setup_context=_keep)


def _sum_dtype(q: Tensor) -> torch.dtype:
    return torch.float64 if q.dtype == torch.float64 else torch.float32


def _options(q: Tensor) -> dict[str, object]:
    return {
        "num_seeds": q.shape[0],
        "heads": q.shape[1],
        "scale": q.shape[2] ** -0.5,
        "K": q.shape[2],
        "WIDTH": block_of(q.shape[2]),
        "SEEDS": block_of(q.shape[0]),
        "TILE": TILE,
        "OPERAND": operand(q.dtype),
        "SUM": accumulator(q.dtype),
    }


@triton.jit
def _read(x, at, inside, OPERAND: tl.constexpr):
    return tl.load(x + at, mask=inside, other=0.0).to(OPERAND)


@triton.jit
def _forward(
    q,
    k,
    v,
    out,
    log_sum,
    begin_B,
    length_B,
    num_seeds,
    heads,
    scale,
    K: tl.constexpr,
    WIDTH: tl.constexpr,
    SEEDS: tl.constexpr,
    TILE: tl.constexpr,
    OPERAND: tl.constexpr,
    SUM: tl.constexpr,
):
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    s, c = tl.arange(0, SEEDS), tl.arange(0, WIDTH)
    mine = (s < num_seeds)[:, None] & (c < K)[None, :]
    q_SK = _read(q, (s[:, None] * heads + head) * K + c[None, :], mine, OPERAND)
    begin, length = tl.load(begin_B + row), tl.load(length_B + row)
    top = tl.full((SEEDS,), float("-inf"), SUM)
    total = tl.zeros((SEEDS,), SUM)
    sum_SK = tl.zeros((SEEDS, WIDTH), SUM)
    for start in range(0, length, TILE):
        t = start + tl.arange(0, TILE)
        there = t < length
        at = ((begin + t)[:, None] * heads + head) * K + c[None, :]
        inside = there[:, None] & (c < K)[None, :]
        k_TK = _read(k, at, inside, OPERAND)
        v_TK = _read(v, at, inside, OPERAND)
        score = tl.dot(q_SK, tl.trans(k_TK), input_precision="ieee", out_dtype=SUM) * scale
        score = tl.where(there[None, :], score, float("-inf"))
        higher = tl.maximum(top, tl.max(score, 1))
        weight = tl.exp(score - higher[:, None])
        fade = tl.exp(top - higher)
        total = total * fade + tl.sum(weight, 1)
        sum_SK = sum_SK * fade[:, None]
        sum_SK += tl.dot(weight.to(OPERAND), v_TK, input_precision="ieee", out_dtype=SUM)
        top = higher
    if length > 0:
        at = ((row * num_seeds + s)[:, None] * heads + head) * K + c[None, :]
        tl.store(out + at, (sum_SK / total[:, None]).to(out.dtype.element_ty), mask=mine)
        at = (row * num_seeds + s) * heads + head
        tl.store(log_sum + at, top + tl.log(total), mask=s < num_seeds)


@triton.jit
def _backward_q(
    grad,
    q,
    k,
    v,
    log_sum,
    mean,
    rows_q,
    begin_B,
    length_B,
    num_seeds,
    heads,
    scale,
    K: tl.constexpr,
    WIDTH: tl.constexpr,
    SEEDS: tl.constexpr,
    TILE: tl.constexpr,
    OPERAND: tl.constexpr,
    SUM: tl.constexpr,
):
    """A row's part of dQ = sum over events of P * (dO V^T - rowsum(dO * O)) K / sqrt(K)."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    s, c = tl.arange(0, SEEDS), tl.arange(0, WIDTH)
    mine = (s < num_seeds)[:, None] & (c < K)[None, :]
    own = ((row * num_seeds + s)[:, None] * heads + head) * K + c[None, :]
    q_SK = _read(q, (s[:, None] * heads + head) * K + c[None, :], mine, OPERAND)
    grad_SK = _read(grad, own, mine, OPERAND)
    seed = (row * num_seeds + s) * heads + head
    top = tl.load(log_sum + seed, mask=s < num_seeds, other=0.0)
    middle = tl.load(mean + seed, mask=s < num_seeds, other=0.0)
    begin, length = tl.load(begin_B + row), tl.load(length_B + row)
    sum_SK = tl.zeros((SEEDS, WIDTH), SUM)
    for start in range(0, length, TILE):
        t = start + tl.arange(0, TILE)
        there = t < length
        at = ((begin + t)[:, None] * heads + head) * K + c[None, :]
        inside = there[:, None] & (c < K)[None, :]
        k_TK = _read(k, at, inside, OPERAND)
        v_TK = _read(v, at, inside, OPERAND)
        score = tl.dot(q_SK, tl.trans(k_TK), input_precision="ieee", out_dtype=SUM) * scale
        weight = tl.where(there[None, :], tl.exp(score - top[:, None]), 0.0)
        pull = tl.dot(grad_SK, tl.trans(v_TK), input_precision="ieee", out_dtype=SUM)
        pull = (weight * (pull - middle[:, None])).to(OPERAND)
        sum_SK += tl.dot(pull, k_TK, input_precision="ieee", out_dtype=SUM)
    tl.store(rows_q + own, sum_SK * scale, mask=mine)


@triton.jit
def _backward_kv(
    grad,
    q,
    k,
    v,
    log_sum,
    mean,
    grad_k,
    grad_v,
    begin_B,
    length_B,
    row_Z,
    start_Z,
    num_seeds,
    heads,
    scale,
    K: tl.constexpr,
    WIDTH: tl.constexpr,
    SEEDS: tl.constexpr,
    TILE: tl.constexpr,
    OPERAND: tl.constexpr,
    SUM: tl.constexpr,
):
    """dV = P^T dO and dK = dS^T Q / sqrt(K) for a tile of events."""
    tile, head = tl.program_id(0), tl.program_id(1)
    row = tl.load(row_Z + tile).to(tl.int64)
    t = tl.load(start_Z + tile) + tl.arange(0, TILE)
    s, c = tl.arange(0, SEEDS), tl.arange(0, WIDTH)
    mine = (s < num_seeds)[:, None] & (c < K)[None, :]
    q_SK = _read(q, (s[:, None] * heads + head) * K + c[None, :], mine, OPERAND)
    own = ((row * num_seeds + s)[:, None] * heads + head) * K + c[None, :]
    grad_SK = _read(grad, own, mine, OPERAND)
    at = (row * num_seeds + s) * heads + head
    top = tl.load(log_sum + at, mask=s < num_seeds, other=float("inf"))
    middle = tl.load(mean + at, mask=s < num_seeds, other=0.0)
    inside = (t < tl.load(length_B + row))[:, None] & (c < K)[None, :]
    at = ((tl.load(begin_B + row) + t)[:, None] * heads + head) * K + c[None, :]
    k_TK = _read(k, at, inside, OPERAND)
    v_TK = _read(v, at, inside, OPERAND)
    score = tl.dot(k_TK, tl.trans(q_SK), input_precision="ieee", out_dtype=SUM) * scale
    weight = tl.exp(score - top[None, :])  # 0 for seeds that do not exist
    sum_v = tl.dot(weight.to(OPERAND), grad_SK, input_precision="ieee", out_dtype=SUM)
    pull = tl.dot(v_TK, tl.trans(grad_SK), input_precision="ieee", out_dtype=SUM)
    pull = (weight * (pull - middle[None, :])).to(OPERAND)
    sum_k = tl.dot(pull, q_SK, input_precision="ieee", out_dtype=SUM) * scale
    tl.store(grad_k + at, sum_k.to(grad_k.dtype.element_ty), mask=inside)
    tl.store(grad_v + at, sum_v.to(grad_v.dtype.element_ty), mask=inside)
