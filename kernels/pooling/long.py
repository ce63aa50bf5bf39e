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
        keys, values, weights = of_rows(k, ctx.sizes), of_rows(v, ctx.sizes), []
        for row, k_HtK, v_HtK in zip(ctx.rows, keys, values, strict=True):
            weights.append(torch.bmm(q_HSK, k_HtK.mT).softmax(-1))
            torch.bmm(weights[-1], v_HtK, out=out_BHSK[row])
        ctx.shape = k.shape
        ctx.save_for_backward(q_HSK, *weights, *keys, *values)
        return out_BHSK.transpose(1, 2)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_BSHK: Tensor) -> Any:
        """The seeds' gradient is summed in float32 at least."""
        q_HSK, *kept = ctx.saved_tensors
        grad_BHSK = grad_BSHK.transpose(1, 2).contiguous()
        dk, dv, dq = q_HSK.new_empty(ctx.shape), q_HSK.new_empty(ctx.shape), []
        num = len(ctx.rows)
        kept = (kept[:num], kept[num : 2 * num], kept[2 * num :])
        rows = zip(ctx.rows, *kept, of_rows(dk, ctx.sizes), of_rows(dv, ctx.sizes), strict=True)
        for row, p_HSt, k_HtK, v_HtK, dk_HtK, dv_HtK in rows:
            g_HSK = grad_BHSK[row]
            torch.bmm(p_HSt.mT, g_HSK, out=dv_HtK)
            ds_HSt = torch.bmm(g_HSK, v_HtK.mT)
            ds_HSt = torch._softmax_backward_data(ds_HSt, p_HSt, -1, p_HSt.dtype)
            torch.bmm(ds_HSt.mT, q_HSK, out=dk_HtK)
            dq.append(torch.bmm(ds_HSt, k_HtK))
        clear_free(ctx.sizes, dk, dv)
        wide = torch.promote_types(q_HSK.dtype, torch.float32)
        dq_HSK = torch.stack(dq).sum(0, dtype=wide).mul_(ctx.scale).to(q_HSK.dtype)
        return dq_HSK.transpose(0, 1), dk, dv, None
