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

from kernels.gdpa.reference import place_of
from kernels.layout import Span

aten = torch.ops.aten


class LongGdpa(torch.autograd.Function):
    """A = act(q k^T), out = A v; dv = A^T dO; dS = dO v^T * act'(S); dq = dS k; dk = dS^T q."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, spans: list[Span], names: tuple[str, ...]
    ) -> Tensor:
        """[P, H, K]; `k` [B, H, N, K] is scaled already. Keeps its inputs, S and A."""
        _, heads, keys, _ = k.shape
        names = tuple(islice(cycle(names), heads))
        sizes = [heads * keys * (span.end - span.begin) for span in spans]
        scores = q.new_empty(sum(sizes)).split(sizes)
        active = q.new_empty(sum(sizes)).split(sizes)
        out = torch.empty_like(q)
        for i, span in enumerate(spans):
            s_HtN, a_HtN = (x[i].view(heads, -1, keys) for x in (scores, active))
            torch.bmm(span.of(q), k[span.row].transpose(1, 2), out=s_HtN)
            _by_head(_activate, names, s_HtN, a_HtN)
            span.of(out).copy_(torch.bmm(a_HtN, v[span.row]))
            span.clear(out)
        ctx.save_for_backward(q, k, v, *scores, *active)
        ctx.spans, ctx.names = spans, names
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        """Rows without events have no gradient."""
        q, k, v, *kept = ctx.saved_tensors
        scores, active = kept[: len(ctx.spans)], kept[len(ctx.spans) :]
        dq, dk, dv = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        room = torch.empty_like(max(scores, key=len))
        for span, s, a in zip(ctx.spans, scores, active, strict=True):
            s_HtN, a_HtN = (x.view(k.shape[1], -1, k.shape[2]) for x in (s, a))
            grad_HtK = span.of(grad)
            torch.bmm(a_HtN.transpose(1, 2), grad_HtK, out=dv[span.row])
            ds_HtN = room[: len(s)].view(s_HtN.shape)
            torch.bmm(grad_HtK, v[span.row].transpose(1, 2), out=ds_HtN)
            _by_head(_slope, ctx.names, s_HtN, ds_HtN)
            torch.bmm(ds_HtN.transpose(1, 2), span.of(q), out=dk[span.row])
            span.of(dq).copy_(torch.bmm(ds_HtN, k[span.row]))
            span.clear(dq)
        return dq, dk, dv, None, None


def _by_head(
    change: Callable[[str, Tensor, Tensor], None],
    names: tuple[str, ...],
    score_HtN: Tensor,
    value_HtN: Tensor,
) -> None:
    """Change the values in place by the scores, each head by its own activation."""
    if len(set(names)) == 1:
        change(names[0], score_HtN, value_HtN)
        return
    for name, score_tN, value_tN in zip(names, score_HtN, value_HtN, strict=True):
        change(name, score_tN, value_tN)


def _activate(name: str, score: Tensor, out: Tensor) -> None:
    if name == "gelu":
        aten.gelu.out(score, out=out)
    elif name == "silu":
        aten.silu.out(score, out=out)
    elif name in ("relu", "relu_square"):
        torch.clamp_min(score, 0, out=out)
        if name == "relu_square":
            out.square_()
    else:
        place_of(name)  # anything else is no activation
        out.copy_(score)


def _slope(name: str, score: Tensor, grad: Tensor) -> None:
    """Times act'(score), in place."""
    if name == "gelu":
        aten.gelu_backward.grad_input(grad, score, grad_input=grad)
    elif name == "silu":
        aten.silu_backward.grad_input(grad, score, grad_input=grad)
    elif name == "relu":
        aten.threshold_backward.grad_input(grad, score, 0, grad_input=grad)
    elif name == "relu_square":
        grad.mul_(score.clamp_min(0)).mul_(2)
