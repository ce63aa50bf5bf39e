"""Jagged attention on a GPU: one pass over the keys that a tile of queries may see.

Suffixes: P slots, H heads, K head width, R = K / 2 pairs; in kernels T queries and N keys of a
tile. Kept for the backward pass are the inputs, the output and each query's log-sum; no sum depends
on the order of programs. Queries and keys may lie in layouts of their own: the same rows with
other lengths.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kernels.attention.triton_kernel import (
    BLOCK,
    FULL,
    TILE,
    WINDOW,
    backward_kv,
    backward_q,
    forward,
)
from kernels.layout import Layout
from kernels.tiles import accumulator, block_of, chip_of, launch_of, operand, sum_dtype, tiles_of


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
        [*tiles_of(layout, TILE).tensors(), *tiles_of(kv_layout or layout, TILE).tensors()],
        mode,
        reach,
    )
    result: Tensor = out
    return result


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
    log_sum = q.new_zeros(q.shape[:2], dtype=sum_dtype(q.dtype))
    if tiles[2].shape[0]:
        grid = (tiles[2].shape[0], q.shape[1])
        turns = angles or [q, q]
        forward[grid](q, k, v, *turns, out, log_sum, *tiles[:6], **_options(q, angles, mode, reach))
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
        backward_q[grid](*inputs, grad_q, *tiles[:6], **options)
    if tiles[6].shape[0]:
        grid = (tiles[6].shape[0], q.shape[1])
        backward_kv[grid](*inputs, grad_k, grad_v, *tiles[:2], *tiles[4:], **options)
    return grad_q, grad_k, grad_v


@_attention.register_fake
def _(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    angles: list[Tensor],
    tiles: list[Tensor],
    mode: int,
    reach: int,
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(q), q.new_empty(q.shape[:2], dtype=sum_dtype(q.dtype))


@_attention_backward.register_fake
def _(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: object) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    q, k, v, angles, tiles, ctx.mode, ctx.reach = inputs
    ctx.num_angles = len(angles)
    ctx.save_for_backward(q, k, v, *output, *angles, *tiles)


def _gradients(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Any, ...]:
    kept, rest = ctx.saved_tensors[:5], ctx.saved_tensors[5:]
    angles, tiles = rest[: ctx.num_angles], rest[ctx.num_angles :]
    grads = _attention_backward(
        grad.contiguous(), *kept, list(angles), list(tiles), ctx.mode, ctx.reach
    )
    return *grads, [None] * len(angles), [None] * len(tiles), None, None


_attention.register_autograd(_gradients, setup_context=_keep)


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
        **launch_of("attention", chip_of(q.device)),
    }
