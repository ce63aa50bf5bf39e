"""GPU programs of GDPA; triton_op.py starts them.

Suffixes: T queries of a tile, N keys, K head width, B rows, Z tiles.
"""

from __future__ import annotations

import triton
import triton.language as tl

QUERIES, KEYS = 64, 64


@triton.jit
def _act(x, ACTIVATION: tl.constexpr):
    """Act(x); the numbers are places in `reference.ACTIVATIONS`."""
    if ACTIVATION == 0:
        return x * 0.5 * (1.0 + tl.erf(x * 0.7071067811865476))
    elif ACTIVATION == 1:
        return x / (1.0 + tl.exp(-x))
    elif ACTIVATION == 2:
        return tl.where(x > 0, x, 0.0)
    elif ACTIVATION == 3:
        return tl.where(x > 0, x * x, 0.0)
    else:
        return x


@triton.jit
def _slope(x, ACTIVATION: tl.constexpr):
    """Act'(x)."""
    if ACTIVATION == 0:
        density = tl.exp(x * x * -0.5) * 0.3989422804014327
        return 0.5 * (1.0 + tl.erf(x * 0.7071067811865476)) + x * density
    elif ACTIVATION == 1:
        gate = 1.0 / (1.0 + tl.exp(-x))
        return gate * (1.0 + x * (1.0 - gate))
    elif ACTIVATION == 2:
        return tl.where(x > 0, 1.0, 0.0)
    elif ACTIVATION == 3:
        return tl.where(x > 0, 2.0 * x, 0.0)
    else:
        return x * 0.0 + 1.0


@triton.jit
def forward(
    q,
    k,
    v,
    out,
    begin_B,
    length_B,
    row_Z,
    start_Z,
    scale,
    num_keys,
    heads,
    first_head,
    head_step,
    K: tl.constexpr,
    WIDTH: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    OPERAND: tl.constexpr,
    SUM: tl.constexpr,
    ACTIVATION: tl.constexpr,
):
    """O = Act(a Q K^T) V for a tile of queries."""
    tile, head = tl.program_id(0), first_head + tl.program_id(1) * head_step
    row = tl.load(row_Z + tile).to(tl.int64)
    t = tl.load(start_Z + tile) + tl.arange(0, QUERIES)
    c = tl.arange(0, WIDTH)
    inside = (t < tl.load(length_B + row))[:, None] & (c < K)[None, :]
    at = ((tl.load(begin_B + row) + t)[:, None] * heads + head) * K + c[None, :]
    q_TK = tl.load(q + at, mask=inside, other=0.0).to(OPERAND)
    sum_TK = tl.zeros((QUERIES, WIDTH), SUM)
    keys = (row * heads + head) * num_keys * K
    for first in range(0, num_keys, KEYS):
        n = first + tl.arange(0, KEYS)
        there = (n < num_keys)[:, None] & (c < K)[None, :]
        place = keys + n[:, None] * K + c[None, :]
        k_NK = tl.load(k + place, mask=there, other=0.0).to(OPERAND)
        v_NK = tl.load(v + place, mask=there, other=0.0).to(OPERAND)
        # a key that is not there is 0, and so is Act of its score
        score = tl.dot(q_TK, tl.trans(k_NK), input_precision="ieee", out_dtype=SUM) * scale
        weight = _act(score, ACTIVATION).to(OPERAND)
        sum_TK += tl.dot(weight, v_NK, input_precision="ieee", out_dtype=SUM)
    tl.store(out + at, sum_TK.to(out.dtype.element_ty), mask=inside)


@triton.jit
def backward_q(
    grad,
    q,
    k,
    v,
    grad_q,
    begin_B,
    length_B,
    row_Z,
    start_Z,
    scale,
    num_keys,
    heads,
    first_head,
    head_step,
    K: tl.constexpr,
    WIDTH: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    OPERAND: tl.constexpr,
    SUM: tl.constexpr,
    ACTIVATION: tl.constexpr,
):
    """dQ = a dS K with dS = (dO V^T) * Act'(S)."""
    tile, head = tl.program_id(0), first_head + tl.program_id(1) * head_step
    row = tl.load(row_Z + tile).to(tl.int64)
    t = tl.load(start_Z + tile) + tl.arange(0, QUERIES)
    c = tl.arange(0, WIDTH)
    inside = (t < tl.load(length_B + row))[:, None] & (c < K)[None, :]
    at = ((tl.load(begin_B + row) + t)[:, None] * heads + head) * K + c[None, :]
    q_TK = tl.load(q + at, mask=inside, other=0.0).to(OPERAND)
    grad_TK = tl.load(grad + at, mask=inside, other=0.0).to(OPERAND)
    sum_TK = tl.zeros((QUERIES, WIDTH), SUM)
    keys = (row * heads + head) * num_keys * K
    for first in range(0, num_keys, KEYS):
        n = first + tl.arange(0, KEYS)
        there = (n < num_keys)[:, None] & (c < K)[None, :]
        place = keys + n[:, None] * K + c[None, :]
        k_NK = tl.load(k + place, mask=there, other=0.0).to(OPERAND)
        v_NK = tl.load(v + place, mask=there, other=0.0).to(OPERAND)
        score = tl.dot(q_TK, tl.trans(k_NK), input_precision="ieee", out_dtype=SUM) * scale
        pull = tl.dot(grad_TK, tl.trans(v_NK), input_precision="ieee", out_dtype=SUM)
        pull = (pull * _slope(score, ACTIVATION)).to(OPERAND)
        sum_TK += tl.dot(pull, k_NK, input_precision="ieee", out_dtype=SUM)
    tl.store(grad_q + at, (sum_TK * scale).to(grad_q.dtype.element_ty), mask=inside)


@triton.jit
def backward_kv(
    grad,
    q,
    k,
    v,
    grad_k,
    grad_v,
    begin_B,
    length_B,
    scale,
    num_keys,
    heads,
    first_head,
    head_step,
    K: tl.constexpr,
    WIDTH: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    OPERAND: tl.constexpr,
    SUM: tl.constexpr,
    ACTIVATION: tl.constexpr,
):
    """dV = P^T dO and dK = a dS^T Q for a block of a row's keys, over all of the row's events."""
    blocks = tl.cdiv(num_keys, KEYS)
    row = (tl.program_id(0) // blocks).to(tl.int64)
    head = first_head + tl.program_id(1) * head_step
    n = (tl.program_id(0) % blocks) * KEYS + tl.arange(0, KEYS)
    c = tl.arange(0, WIDTH)
    there = (n < num_keys)[:, None] & (c < K)[None, :]
    place = (row * heads + head) * num_keys * K + n[:, None] * K + c[None, :]
    k_NK = tl.load(k + place, mask=there, other=0.0).to(OPERAND)
    v_NK = tl.load(v + place, mask=there, other=0.0).to(OPERAND)
    begin, length = tl.load(begin_B + row), tl.load(length_B + row)
    sum_k = tl.zeros((KEYS, WIDTH), SUM)
    sum_v = tl.zeros((KEYS, WIDTH), SUM)
    for start in range(0, length, QUERIES):
        t = start + tl.arange(0, QUERIES)
        inside = (t < length)[:, None] & (c < K)[None, :]
        at = ((begin + t)[:, None] * heads + head) * K + c[None, :]
        q_TK = tl.load(q + at, mask=inside, other=0.0).to(OPERAND)
        grad_TK = tl.load(grad + at, mask=inside, other=0.0).to(OPERAND)
        score = tl.dot(k_NK, tl.trans(q_TK), input_precision="ieee", out_dtype=SUM) * scale
        weight = _act(score, ACTIVATION).to(OPERAND)
        sum_v += tl.dot(weight, grad_TK, input_precision="ieee", out_dtype=SUM)
        pull = tl.dot(v_NK, tl.trans(grad_TK), input_precision="ieee", out_dtype=SUM)
        pull = (pull * _slope(score, ACTIVATION)).to(OPERAND)
        sum_k += tl.dot(pull, q_TK, input_precision="ieee", out_dtype=SUM)
    tl.store(grad_k + place, (sum_k * scale).to(grad_k.dtype.element_ty), mask=there)
    tl.store(grad_v + place, sum_v.to(grad_v.dtype.element_ty), mask=there)
