"""GPU programs of jagged attention; triton_op.py starts them.

Suffixes: H heads, K head width, T queries and N keys of a tile, B rows, Z and Y tiles.
"""

from __future__ import annotations

import triton
import triton.language as tl

TILE = 64
FULL, WINDOW, BLOCK = 0, 1, 2


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
def forward(
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
def backward_q(
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
def backward_kv(
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
