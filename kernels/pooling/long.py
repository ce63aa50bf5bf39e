"""Seeds that read long rows: row by row, results and gradients written where they belong.

Nothing of the size of the events is allocated beyond the weights, [H, S] per event, and the
gradients, and no free slot is read. Half of the time of a batch of few rows goes into calls rather
than numbers: hence few and plain ones.

Suffixes: P slots, B rows, S seeds, H heads, K head width, t events of a row.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kernels.layout import Layout, clear_free, of_rows


class LongSeeds(torch.autograd.Function):
    """dV = P^T dO; dS = P * (dO V^T - rowsum); dK = dS^T q; dq = sum over rows of dS K."""

    @staticmethod
    def forward(ctx: Any, q_SHK: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        """[B, S, H, K]. Keeps its inputs and the weights."""
        ctx.scale = k.shape[-1] ** -0.5
        ctx.sizes, ctx.rows = layout.sizes(), layout.order_R.tolist()
        q_HSK = (q_SHK * ctx.scale).transpose(0, 1).contiguous()
        out_BHSK = q_HSK.new_zeros(layout.num_rows, *q_HSK.shape)
        weights = []
        kv = (of_rows(x, ctx.sizes) for x in (k, v))
        for row, k_HtK, v_HtK in zip(ctx.rows, *kv, strict=True):
            p_HSt = torch.bmm(q_HSK, k_HtK.mT)
            weights.append(torch.softmax(p_HSt, -1, out=p_HSt))
            torch.bmm(p_HSt, v_HtK, out=out_BHSK[row])
        ctx.save_for_backward(q_HSK, k, v, *weights)
        return out_BHSK.transpose(1, 2)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_BSHK: Tensor) -> Any:
        """The seeds' gradient is summed in float32 at least."""
        q_HSK, k, v, *weights = ctx.saved_tensors
        grad_BHSK = grad_BSHK.transpose(1, 2)
        dk, dv, dq = torch.empty_like(k), torch.empty_like(v), []
        parts = (of_rows(x, ctx.sizes) for x in (k, v, dk, dv))
        for row, p_HSt, k_HtK, v_HtK, dk_HtK, dv_HtK in zip(ctx.rows, weights, *parts, strict=True):
            g_HSK = grad_BHSK[row]
            torch.bmm(p_HSt.mT, g_HSK, out=dv_HtK)
            ds_HSt = torch.bmm(g_HSK, v_HtK.mT)
            ds_HSt = torch._softmax_backward_data(ds_HSt, p_HSt, -1, p_HSt.dtype)
            torch.bmm(ds_HSt.mT, q_HSK, out=dk_HtK)
            dq.append(torch.bmm(ds_HSt, k_HtK))
        clear_free(ctx.sizes, dk, dv)
        wide = torch.promote_types(k.dtype, torch.float32)
        dq_HSK = torch.stack(dq).sum(0, dtype=wide).mul_(ctx.scale).to(k.dtype)
        return dq_HSK.transpose(0, 1), dk, dv, None
