"""Pooling of jagged rows on a GPU: one program per row and block of columns, one pass.

Suffixes: P slots, B rows, D columns. Kept for the backward pass are the inputs, the output and,
under softmax, each row's log-sum; no sum depends on the order of programs.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import triton
from torch import Tensor

from kernels.jagged_pool.triton_kernel import (
    COLUMNS,
    MEAN,
    SOFTMAX,
    SUMMED,
    TILE,
    backward,
    forward,
)
from kernels.layout import Layout
from kernels.tiles import accumulator, chip_of, launch_of, sum_dtype, tiles_of

PLACES = {"mean": MEAN, "sum": SUMMED, "softmax": SOFTMAX}


def jagged_pool(
    values_PD: Tensor,
    layout: Layout,
    *,
    mode: Literal["mean", "sum", "softmax"] = "mean",
    logits_P: Tensor | None = None,
) -> Tensor:
    """[B, D]: mean, sum or softmax-weighted sum of each row's events; empty rows give zeros."""
    layout.require_slots(*(x for x in (values_PD, logits_P) if x is not None))
    logits = values_PD.new_empty(0) if logits_P is None else logits_P.contiguous()
    tiles = tiles_of(layout, TILE).tensors()
    out, _ = _pool(values_PD.contiguous(), logits, tiles, PLACES[mode])
    result: Tensor = out
    return result


@torch.library.custom_op("headwater::jagged_pool", mutates_args=())
def _pool(
    values: torch.Tensor, logits: torch.Tensor, tiles: list[torch.Tensor], mode: int
) -> tuple[torch.Tensor, torch.Tensor]:
    num_rows, num_columns = tiles[0].shape[0], values.shape[1]
    out = values.new_zeros(num_rows, num_columns)
    log_sum = values.new_zeros(num_rows, dtype=sum_dtype(values.dtype))
    if tiles[2].shape[0]:
        grid = (num_rows, triton.cdiv(num_columns, COLUMNS))
        options = _options(values, mode)
        forward[grid](values, logits, out, log_sum, *tiles[:2], num_columns, **options)
    return out, log_sum


@torch.library.custom_op("headwater::jagged_pool_backward", mutates_args=())
def _pool_backward(
    grad: torch.Tensor,
    values: torch.Tensor,
    logits: torch.Tensor,
    out: torch.Tensor,
    log_sum: torch.Tensor,
    tiles: list[torch.Tensor],
    mode: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    grad_values, grad_logits = torch.zeros_like(values), torch.zeros_like(logits)
    mean = (grad.to(log_sum.dtype) * out.to(log_sum.dtype)).sum(-1)
    if tiles[2].shape[0]:
        inputs = (grad, values, logits, log_sum, mean, grad_values, grad_logits)
        options = _options(values, mode)
        backward[(tiles[2].shape[0],)](*inputs, *tiles, values.shape[1], **options)
    return grad_values, grad_logits


@_pool.register_fake
def _(values: Tensor, logits: Tensor, tiles: list[Tensor], mode: int) -> tuple[Tensor, Tensor]:
    num_rows = tiles[0].shape[0]
    out = values.new_empty(num_rows, values.shape[1])
    return out, values.new_empty(num_rows, dtype=sum_dtype(values.dtype))


@_pool_backward.register_fake
def _(grad: Tensor, values: Tensor, logits: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    return torch.empty_like(values), torch.empty_like(logits)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    values, logits, tiles, ctx.mode = inputs
    ctx.save_for_backward(values, logits, *output, *tiles)


def _gradients(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Any, ...]:
    values, logits, out, log_sum, *tiles = ctx.saved_tensors
    grads = _pool_backward(grad.contiguous(), values, logits, out, log_sum, tiles, ctx.mode)
    return *grads, [None] * len(tiles), None


_pool.register_autograd(_gradients, setup_context=_keep)


def _options(values: Tensor, mode: int) -> dict[str, object]:
    return {
        "TILE": TILE,
        "COLUMNS": COLUMNS,
        "MODE": mode,
        "SUM": accumulator(values.dtype),
        **launch_of("jagged_pool", chip_of(values.device)),
    }
