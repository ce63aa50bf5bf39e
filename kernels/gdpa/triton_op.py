"""GDPA on a GPU: one program per tile of queries, and per block of keys for their gradients.

Suffixes: P slots, B rows, H heads, N keys, K head width, Z tiles; in kernels T queries of a tile.
Nothing is kept for the backward pass but the inputs, and no sum depends on the order of programs.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from kernels.gdpa.reference import place_of
from kernels.gdpa.triton_kernel import KEYS, QUERIES, backward_kv, backward_q, forward
from kernels.layout import Layout
from kernels.tiles import accumulator, block_of, operand, tiles_of


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
        tiles.tensors(),
        scale,
        [place_of(name) for name in names],
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
        forward[grid](q, k, v, out, *tiles, scale, k.shape[2], q.shape[1], *head, **options)
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
        backward_q[grid](grad, q, k, v, grad_q, *tiles, *sizes, *head, **options)
    blocks = k.shape[0] * triton.cdiv(k.shape[2], KEYS)
    for grid, head, options in _launches(q, k, blocks, activations):
        backward_kv[grid](grad, q, k, v, grad_k, grad_v, *tiles[:2], *sizes, *head, **options)
    return grad_q, grad_k, grad_v


@_gdpa.register_fake
def _(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    tiles: list[Tensor],
    scale: float,
    activations: list[int],
) -> Tensor:
    return torch.empty_like(q)


@_gdpa_backward.register_fake
def _(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: object) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    q, k, v, tiles, ctx.scale, ctx.activations = inputs
    ctx.save_for_backward(q, k, v, *tiles)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
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
