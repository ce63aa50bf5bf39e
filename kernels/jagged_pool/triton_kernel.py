"""GPU programs of pooling; triton_op.py starts them.

Suffixes: T events of a tile, D columns of a program, B rows, Z tiles.
"""

from __future__ import annotations

import triton
import triton.language as tl

TILE, COLUMNS = 64, 64
MEAN, SUMMED, SOFTMAX = 0, 1, 2


@triton.jit
def forward(
    values,
    logits,
    out,
    log_sum,
    begin_B,
    length_B,
    num_columns,
    TILE: tl.constexpr,
    COLUMNS: tl.constexpr,
    MODE: tl.constexpr,
    SUM: tl.constexpr,
):
    """A row's weighted sum of a block of columns, with a running maximum under softmax."""
    row = tl.program_id(0).to(tl.int64)
    d = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    begin, length = tl.load(begin_B + row), tl.load(length_B + row)
    sum_D = tl.zeros((COLUMNS,), SUM)
    top = tl.max(tl.full((TILE,), float("-inf"), SUM), 0)
    total = tl.sum(tl.zeros((TILE,), SUM), 0)
    for start in range(0, length, TILE):
        t = start + tl.arange(0, TILE)
        inside = (t < length)[:, None] & (d < num_columns)[None, :]
        at = (begin + t)[:, None] * num_columns + d[None, :]
        x_TD = tl.load(values + at, mask=inside, other=0.0).to(SUM)
        if MODE == 2:
            score = tl.load(logits + begin + t, mask=t < length, other=float("-inf")).to(SUM)
            higher = tl.maximum(top, tl.max(score, 0))
            weight, fade = tl.exp(score - higher), tl.exp(top - higher)
            total = total * fade + tl.sum(weight, 0)
            sum_D = sum_D * fade + tl.sum(x_TD * weight[:, None], 0)
            top = higher
        else:
            sum_D += tl.sum(x_TD, 0)
    if length > 0:
        if MODE == 0:
            sum_D = sum_D / length.to(SUM)
        if MODE == 2:
            sum_D = sum_D / total
            tl.store(log_sum + row, top + tl.log(total))  # alike in all blocks of columns
        at = row * num_columns + d
        tl.store(out + at, sum_D.to(out.dtype.element_ty), mask=d < num_columns)


@triton.jit
def backward(
    grad,
    values,
    logits,
    log_sum,
    mean,
    grad_values,
    grad_logits,
    begin_B,
    length_B,
    row_Z,
    start_Z,
    num_columns,
    TILE: tl.constexpr,
    COLUMNS: tl.constexpr,
    MODE: tl.constexpr,
    SUM: tl.constexpr,
):
    """dX = w dO and, under softmax, dl = w * (dO X^T - dO O) for a tile of events."""
    tile = tl.program_id(0)
    row = tl.load(row_Z + tile).to(tl.int64)
    t = tl.load(start_Z + tile) + tl.arange(0, TILE)
    begin, length = tl.load(begin_B + row), tl.load(length_B + row)
    there = t < length
    weight = tl.full((TILE,), 1.0, SUM)
    if MODE == 0:
        weight = weight / length.to(SUM)
    if MODE == 2:
        score = tl.load(logits + begin + t, mask=there, other=float("-inf")).to(SUM)
        weight = tl.exp(score - tl.load(log_sum + row))
    pull = tl.zeros((TILE,), SUM)
    for first in range(0, num_columns, COLUMNS):
        d = first + tl.arange(0, COLUMNS)
        inside = there[:, None] & (d < num_columns)[None, :]
        at = (begin + t)[:, None] * num_columns + d[None, :]
        grad_D = tl.load(grad + row * num_columns + d, mask=d < num_columns, other=0.0).to(SUM)
        grad_TD = weight[:, None] * grad_D[None, :]
        tl.store(grad_values + at, grad_TD.to(grad_values.dtype.element_ty), mask=inside)
        if MODE == 2:
            x_TD = tl.load(values + at, mask=inside, other=0.0).to(SUM)
            pull += tl.sum(x_TD * grad_D[None, :], 1)
    if MODE == 2:
        pull = weight * (pull - tl.load(mean + row))
        tl.store(grad_logits + begin + t, pull.to(grad_logits.dtype.element_ty), mask=there)
