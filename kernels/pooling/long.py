"""Seeds that read long rows: row by row, results and gradients written where they belong.

Nothing of the size of the events is allocated beyond the weights, [H, S] per event, and the
gradients, and no free slot is read.

Suffixes: P slots, S seeds, H heads, K head width, t events of a row.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kernels.layout import Span, clear_free, of_rows


class LongSeeds(torch.autograd.Function):
    """dV = P^T dO; dS = P * (dO V^T - rowsum); dK = dS^T q; dq = sum over rows of dS K."""

    @staticmethod
    def forward(ctx: Any, q_HSK: Tensor, k: Tensor, v: Tensor, spans: list[Span]) -> Tensor:
        """[R, H, S, K]; `q_HSK` is scaled already. Keeps its inputs and the weights."""
        shape = q_HSK.shape[:2]
        ctx.sizes = [shape.numel() * (span.end - span.begin) for span in spans]
        weights = q_HSK.new_empty(sum(ctx.sizes))
        out = q_HSK.new_empty(len(spans), *q_HSK.shape)
        rows = zip(weights.split(ctx.sizes), of_rows(k, spans), of_rows(v, spans), out, strict=True)
        for weight, k_HtK, v_HtK, out_HSK in rows:
            p_HSt = weight.view(*shape, -1)
            torch.bmm(q_HSK, k_HtK.transpose(1, 2), out=p_HSt)
            torch.softmax(p_HSt, -1, out=p_HSt)
            torch.bmm(p_HSt, v_HtK, out=out_HSK)
        ctx.save_for_backward(q_HSK, k, v, weights)
        ctx.spans = spans
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        """The seeds' gradient is summed in float32 at least."""
        q, k, v, weights = ctx.saved_tensors
        wide = torch.promote_types(q.dtype, torch.float32)
        dq, dk, dv = q.new_zeros(q.shape, dtype=wide), torch.empty_like(k), torch.empty_like(v)
        room = weights.new_empty(max(ctx.sizes))
        parts = (of_rows(x, ctx.spans) for x in (k, v, dk, dv))
        for weight, g_HSK, *row in zip(weights.split(ctx.sizes), grad, *parts, strict=True):
            k_HtK, v_HtK, dk_HtK, dv_HtK = row
            p_HSt = weight.view(*q.shape[:2], -1)
            ds_HSt = room[: weight.numel()].view(p_HSt.shape)
            torch.bmm(p_HSt.transpose(1, 2), g_HSK, out=dv_HtK)
            torch.bmm(g_HSK, v_HtK.transpose(1, 2), out=ds_HSt)
            torch.ops.aten._softmax_backward_data.out(
                ds_HSt, p_HSt, -1, p_HSt.dtype, grad_input=ds_HSt
            )
            torch.bmm(ds_HSt.transpose(1, 2), q, out=dk_HtK)
            if wide == q.dtype:
                dq.baddbmm_(ds_HSt, k_HtK)
            else:
                dq += torch.bmm(ds_HSt, k_HtK)
        clear_free(ctx.spans, dk, dv)
        return dq.to(q.dtype), dk, dv, None
