"""Seeds that read jagged rows on a GPU: one program per row and head, one pass over its events.

Suffixes: P slots, B rows, S seeds, H heads, K head width; in kernels T events of a tile. The seeds'
gradient is one partial sum per row, added up in row order: no sum depends on the order of programs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kernels.layout import Layout
from kernels.pooling.triton_kernel import TILE, backward_kv, backward_q, forward
from kernels.tiles import accumulator, block_of, operand, sum_dtype, tiles_of


def seed_attention(q_SHK: Tensor, k_PHK: Tensor, v_PHK: Tensor, layout: Layout) -> Tensor:
    """softmax over each row's events of q k^T / sqrt(K), times v: [B, S, H, K]; empty rows 0."""
    layout.require_slots(k_PHK, v_PHK)
    tiles = tiles_of(layout, TILE)
    out, _ = _seeds(
        q_SHK.contiguous(),
        k_PHK.contiguous(),
        v_PHK.contiguous(),
        tiles.tensors(),
    )
    result: Tensor = out
    return result


@torch.library.custom_op("headwater::seed_attention", mutates_args=())
def _seeds(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, tiles: list[torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    num_rows = tiles[0].shape[0]
    out = q.new_zeros(num_rows, *q.shape)
    log_sum = q.new_zeros(num_rows, *q.shape[:2], dtype=sum_dtype(q.dtype))
    if num_rows:
        forward[(num_rows, q.shape[1])](q, k, v, out, log_sum, *tiles[:2], **_options(q))
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
        backward_q[(tiles[0].shape[0], q.shape[1])](*inputs, rows_q, *tiles[:2], **_options(q))
        grid = (tiles[2].shape[0], q.shape[1])
        backward_kv[grid](*inputs, grad_k, grad_v, *tiles, **_options(q))
    return rows_q.sum(0).to(q.dtype), grad_k, grad_v


@_seeds.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, tiles: list[Tensor]) -> tuple[Tensor, Tensor]:
    num_rows = tiles[0].shape[0]
    return q.new_empty(num_rows, *q.shape), q.new_empty(
        num_rows, *q.shape[:2], dtype=sum_dtype(q.dtype)
    )


@_seeds_backward.register_fake
def _(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: object) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    q, k, v, tiles = inputs
    ctx.save_for_backward(q, k, v, *output, *tiles)


def _gradients(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Any, ...]:
    q, k, v, out, log_sum, *tiles = ctx.saved_tensors
    grads = _seeds_backward(grad.contiguous(), q, k, v, out, log_sum, tiles)
    return *grads, [None] * len(tiles)


_seeds.register_autograd(_gradients, setup_context=_keep)


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
