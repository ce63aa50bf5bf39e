"""Seeds that read long rows: row by row, results and gradients written where they belong.

Nothing of the size of the events is allocated beyond the weights, [H, S] per event, and the
gradients, and no free slot is read.

Suffixes: P slots, S seeds, H heads, K head width, t events of a row.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from kernels.layout import Layout


def spans_of(layout: Layout) -> list[tuple[int, int]]:
    """First slot and length of every row that has events, in the layout's order."""
    begin_R, length_R = layout.begin_B[layout.order_R], layout.lengths_B[layout.order_R]
    return list(zip(begin_R.tolist(), length_R.tolist(), strict=True))


class LongSeeds(torch.autograd.Function):
    """dV = P^T dO; dS = P * (dO V^T - rowsum); dK = dS^T q; dq = sum over rows of dS K."""

    @staticmethod
    def forward(
        ctx: Any, q_HSK: Tensor, k: Tensor, v: Tensor, spans: list[tuple[int, int]]
    ) -> Tensor:
        """[R, H, S, K]; `q_HSK` is scaled already. Keeps its inputs and the weights."""
        heads, num_seeds, _ = q_HSK.shape
        sizes = [heads * num_seeds * length for _, length in spans]
        weights = q_HSK.new_empty(sum(sizes)).split(sizes)
        out = q_HSK.new_empty(len(spans), *q_HSK.shape)
        for i, k_HtK, v_HtK in _rows(spans, k, v):
            p_HSt = weights[i].view(heads, num_seeds, -1)
            torch.bmm(q_HSK, k_HtK.transpose(1, 2), out=p_HSt)
            torch.softmax(p_HSt, -1, out=p_HSt)
            torch.bmm(p_HSt, v_HtK, out=out[i])
        ctx.save_for_backward(q_HSK, k, v, *weights)
        ctx.spans = spans
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        """The seeds' gradient is summed in float32 at least."""
        q, k, v, *weights = ctx.saved_tensors
        wide = torch.promote_types(q.dtype, torch.float32)
        dq, dk, dv = q.new_zeros(q.shape, dtype=wide), torch.zeros_like(k), torch.zeros_like(v)
        room = torch.empty_like(max(weights, key=len))
        for i, k_HtK, v_HtK, dk_HtK, dv_HtK in _rows(ctx.spans, k, v, dk, dv):
            p_HSt = weights[i].view(*q.shape[:2], -1)
            torch.bmm(p_HSt.transpose(1, 2), grad[i], out=dv_HtK)
            ds_HSt = torch.bmm(
                grad[i], v_HtK.transpose(1, 2), out=room[: p_HSt.numel()].view(p_HSt.shape)
            )
            torch.ops.aten._softmax_backward_data.out(
                ds_HSt, p_HSt, -1, p_HSt.dtype, grad_input=ds_HSt
            )
            torch.bmm(ds_HSt.transpose(1, 2), q, out=dk_HtK)
            dq += torch.bmm(ds_HSt, k_HtK)
        return dq.to(q.dtype), dk, dv, None


def _rows(spans: list[tuple[int, int]], *values_PHK: Tensor) -> Iterator[tuple[Any, ...]]:
    """(place, [H, t, K] views) of every row."""
    turned = [x.transpose(0, 1) for x in values_PHK]
    for i, (begin, length) in enumerate(spans):
        yield i, *(x[:, begin : begin + length] for x in turned)
