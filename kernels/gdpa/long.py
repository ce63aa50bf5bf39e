"""GDPA of long rows: row by row, results and gradients written where they belong.

Nothing of the size of the events is allocated beyond the scores and their activations, and no free
slot is computed.

Suffixes: P slots, B rows, H heads, N keys of a row, K head width, t events of a row.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle, islice
from typing import Any

import torch
from torch import Tensor

from kernels.gdpa.reference import activate
from kernels.layout import Layout, clear_free, of_rows

aten = torch.ops.aten


class LongGdpa(torch.autograd.Function):
    """A = act(q k^T), out = A v; dv = A^T dO; dS = dO v^T * act'(S); dq = dS k; dk = dS^T q."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, layout: Layout, names: tuple[str, ...]
    ) -> Tensor:
        """[P, H, K]; `k` [B, H, N, K] is scaled already. Keeps its inputs, S and A."""
        ctx.names = tuple(islice(cycle(names), k.shape[1]))
        ctx.rows, ctx.sizes = layout.order_R.tolist(), layout.sizes()
        out, scores, active = q.new_empty(q.shape), [], []
        rows = zip(ctx.rows, of_rows(q, ctx.sizes), of_rows(out, ctx.sizes), strict=True)
        for row, q_HtK, out_HtK in rows:
            s_HtN = torch.bmm(q_HtK, k[row].mT)
            a_HtN = _by_head(_activated, ctx.names, s_HtN)
            torch.bmm(a_HtN, v[row], out=out_HtK)
            scores.append(s_HtN)
            active.append(a_HtN)
        clear_free(ctx.sizes, out)
        ctx.save_for_backward(q, k, v, *scores, *active)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        """Rows without events have no gradient."""
        q, k, v, *kept = ctx.saved_tensors
        num = len(ctx.rows)
        dq, dk, dv = q.new_empty(q.shape), torch.zeros_like(k), torch.zeros_like(v)
        views = (of_rows(x, ctx.sizes) for x in (q, grad, dq))
        rows = zip(ctx.rows, kept[:num], kept[num:], *views, strict=True)
        for row, s_HtN, a_HtN, q_HtK, grad_HtK, dq_HtK in rows:
            torch.bmm(a_HtN.mT, grad_HtK, out=dv[row])
            da_HtN = torch.bmm(grad_HtK, v[row].mT)
            ds_HtN = _by_head(_slope, ctx.names, s_HtN, da_HtN)
            torch.bmm(ds_HtN.mT, q_HtK, out=dk[row])
            torch.bmm(ds_HtN, k[row], out=dq_HtK)
        clear_free(ctx.sizes, dq)
        return dq, dk, dv, None, None


def _by_head(change: Callable[..., Tensor], names: tuple[str, ...], *values_HtN: Tensor) -> Tensor:
    """`change(name, *values)`, each head by its own activation."""
    if len(set(names)) == 1:
        return change(names[0], *values_HtN)
    heads = zip(names, *values_HtN, strict=True)
    return torch.stack([change(name, *values_tN) for name, *values_tN in heads])


def _activated(name: str, score: Tensor) -> Tensor:
    return activate(score, name)


def _slope(name: str, score: Tensor, grad: Tensor) -> Tensor:
    """grad * act'(score)."""
    if name == "gelu":
        return aten.gelu_backward.default(grad, score)
    if name == "silu":
        return aten.silu_backward.default(grad, score)
    if name == "relu":
        return aten.threshold_backward.default(grad, score, 0)
    if name == "relu_square":
        return grad * score.clamp_min(0).mul_(2)
    return grad
