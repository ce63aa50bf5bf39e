"""GPU programs of seed attention; triton_op.py starts them.

Suffixes: S seeds, T events of a tile, K head width, B rows, Z tiles.
"""

from __future__ import annotations

import triton
import triton.language as tl

TILE = 64


@triton.jit
def _read(x, at, inside, OPERAND: tl.constexpr):
    return tl.load(x + at, mask=inside, other=0.0).to(OPERAND)


@triton.jit
def forward(
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
    """O with a running maximum and sum per seed."""
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
def backward_q(
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
def backward_kv(
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
