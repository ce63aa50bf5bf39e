"""GDPA on a GPU: one program per tile of queries, and per block of keys for their gradients.

Suffixes: P slots, B rows, H heads, N keys, K head width, Z tiles; in kernels T queries of a tile.
Nothing is kept for the backward pass but the inputs, and no sum depends on the order of programs.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.layout import Layout
from kernels.tiles import accumulator, block_of, operand, tiles_of

QUERIES, KEYS = 64, 64
ACTIVATIONS = ("gelu", "silu", "relu", "relu_square", "identity")


def gdpa(
    q_PHK: Tensor,
    k_BHNK: Tensor,
    v_BHNK: Tensor,
    layout: Layout,
    *,
    scale: float,
    activation: str | tuple[str, ...] = "gelu",
) -> Tensor:
    """Act(q k^T * scale) v, [P, H, K]; free slots are 0."""
    layout.require_slots(q_PHK)
    names = (activation,) if isinstance(activation, str) else activation
    tiles = tiles_of(layout, QUERIES)
    result: Tensor = _gdpa(
        q_PHK.contiguous(),
        k_BHNK.contiguous(),
        v_BHNK.contiguous(),
        [tiles.begin_B, tiles.length_B, tiles.row_Z, tiles.start_Z],
        scale,
        [ACTIVATIONS.index(name) for name in names],
    )
    return result


@torch.library.custom_op("headwater::gdpa", mutates_args=())
def _gdpa(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    tiles: list[torch.Tensor],
    scale: float,
    activations: list[int],
) -> torch.Tensor:
    out = torch.zeros_like(q)
    for grid, head, options in _launches(q, k, tiles[2].shape[0], activations):
        _forward[grid](q, k, v, out, *tiles, scale, k.shape[2], q.shape[1], *head, **options)
    return out


@torch.library.custom_op("headwater::gdpa_backward", mutates_args=())
def _gdpa_backward(
    grad: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    tiles: list[torch.Tensor],
    scale: float,
    activations: list[int],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    grad_q, grad_k, grad_v = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    sizes = (scale, k.shape[2], q.shape[1])
    for grid, head, options in _launches(q, k, tiles[2].shape[0], activations):
        _backward_q[grid](grad, q, k, v, grad_q, *tiles, *sizes, *head, **options)
    blocks = k.shape[0] * triton.cdiv(k.shape[2], KEYS)
    for grid, head, options in _launches(q, k, blocks, activations):
        _backward_kv[grid](grad, q, k, v, grad_k, grad_v, *tiles[:2], *sizes, *head, **options)
    return grad_q, grad_k, grad_v


@_gdpa.register_fake
def _(q, k, v, tiles, scale, activations):  # type: ignore[no-untyped-def]
    return torch.empty_like(q)


@_gdpa_backward.register_fake
def _(grad, q, k, v, tiles, scale, activations):  # type: ignore[no-untyped-def]
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def _keep(ctx, inputs, output):  # type: ignore[no-untyped-def]
    q, k, v, tiles, ctx.scale, ctx.activations = inputs
    ctx.save_for_backward(q, k, v, *tiles)


def _gradients(ctx, grad):  # type: ignore[no-untyped-def]
    q, k, v, *tiles = ctx.saved_tensors
    grads = _gdpa_backward(grad.contiguous(), q, k, v, tiles, ctx.scale, ctx.activations)
    return *grads, [None] * len(tiles), None, None


_gdpa.register_autograd(_gradients, setup_context=_keep)


def _launches(
    q: Tensor, k: Tensor, programs: int, activations: list[int]
) -> list[tuple[tuple[int, int], tuple[int, int], dict[str, object]]]:
    """Grid, (first head, step) and compile-time options; heads of one activation together."""
    heads, turns = q.shape[1], min(len(activations), q.shape[1])
    if programs == 0:
        return []
    shared = {
        "K": q.shape[2],
        "WIDTH": block_of(q.shape[2]),
        "QUERIES": QUERIES,
        "KEYS": min(KEYS, block_of(k.shape[2])),
        "OPERAND": operand(q.dtype),
        "SUM": accumulator(q.dtype),
    }
    return [
        (
            (programs, len(range(first, heads, turns))),
            (first, turns),
            shared | {"ACTIVATION": activations[first]},
        )
        for first in range(turns)
    ]


@triton.jit
def _act(x, ACTIVATION: tl.constexpr):
    """Act(x); the numbers are places in `ACTIVATIONS`."""
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
def _forward(
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
def _backward_q(
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
def _backward_kv(
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
