"""Seeds that read long rows: row by row, results and gradients written where they belong.

Nothing of the size of the events is allocated beyond the weights, [H, S] per event, and the
gradients, and no free slot is read.

Suffixes: P slots, S seeds, H heads, K head width, t events of a row.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kernels.layout import Span


class LongSeeds(torch.autograd.Function):
    """dV = P^T dO; dS = P * (dO V^T - rowsum); dK = dS^T q; dq = sum over rows of dS K."""

    @staticmethod
    def forward(ctx: Any, q_HSK: Tensor, k: Tensor, v: Tensor, spans: list[Span]) -> Tensor:
        """[R, H, S, K]; `q_HSK` is scaled already. Keeps its inputs and the weights."""
        heads, num_seeds, _ = q_HSK.shape
        sizes = [heads * num_seeds * (span.end - span.begin) for span in spans]
        weights = q_HSK.new_empty(sum(sizes)).split(sizes)
        out = q_HSK.new_empty(len(spans), *q_HSK.shape)
        for i, span in enumerate(spans):
            p_HSt = weights[i].view(heads, num_seeds, -1)
            torch.bmm(q_HSK, span.of(k).transpose(1, 2), out=p_HSt)
            torch.softmax(p_HSt, -1, out=p_HSt)
            torch.bmm(p_HSt, span.of(v), out=out[i])
        ctx.save_for_backward(q_HSK, k, v, *weights)
        ctx.spans = spans
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        """The seeds' gradient is summed in float32 at least."""
        q, k, v, *weights = ctx.saved_tensors
        wide = torch.promote_types(q.dtype, torch.float32)
        dq, dk, dv = q.new_zeros(q.shape, dtype=wide), torch.empty_like(k), torch.empty_like(v)
        room = torch.empty_like(max(weights, key=len))
        for i, span in enumerate(ctx.spans):
            p_HSt = weights[i].view(*q.shape[:2], -1)
            torch.bmm(p_HSt.transpose(1, 2), grad[i], out=span.of(dv))
            ds_HSt = room[: p_HSt.numel()].view(p_HSt.shape)
            torch.bmm(grad[i], span.of(v).transpose(1, 2), out=ds_HSt)
            torch.ops.aten._softmax_backward_data.out(
                ds_HSt, p_HSt, -1, p_HSt.dtype, grad_input=ds_HSt
            )
            torch.bmm(ds_HSt.transpose(1, 2), q, out=span.of(dk))
            dq += torch.bmm(ds_HSt, span.of(k))
            span.clear(dk)
            span.clear(dv)
        return dq.to(q.dtype), dk, dv, None
