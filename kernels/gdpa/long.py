"""GDPA on long rows: in chunks whose scores stay in the cache, recomputed for the gradients.

A chunk is a stretch of one row under all of its heads, or one head of a few short rows. Nothing of
the size of all scores is kept or allocated: fresh memory costs more than the products.

Suffixes: P slots, R rows that have events, H heads, N keys, K head width; n heads or rows of a
chunk, t its events.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kernels.layout import Layout

SHORT = 128
CHUNK = 512
aten = torch.ops.aten


@dataclass(frozen=True)
class Chunk:
    """Rows [first, last) from slot `begin` on, `stride` slots each, of which the first `count`."""

    first: int
    last: int
    begin: int
    stride: int
    count: int
    head: int | None  # None: all heads of a single row

    def slots(self, x_PHK: Tensor) -> Tensor:
        """[n, t, K] view of a slot tensor."""
        _, heads, width = x_PHK.shape
        step = heads * width
        if self.head is None:
            shape, strides, inner = (heads, self.count, width), (width, step, 1), 0
        else:
            shape = (self.last - self.first, self.count, width)
            strides, inner = (self.stride * step, step, 1), self.head * width
        at = int(x_PHK.storage_offset()) + self.begin * step + inner
        return x_PHK.as_strided(shape, strides, at)

    def keys(self, x_RHNK: Tensor) -> Tensor:
        """[n, N, K] view of keys, values or their gradients."""
        if self.head is None:
            return x_RHNK[self.first]
        return x_RHNK[self.first : self.last, self.head]

    def names(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Activations of the chunk's n, taken in turn."""
        return names if self.head is None else (names[self.head % len(names)],)


def chunks_of(layout: Layout, heads: int) -> list[Chunk]:
    """All events of a layout."""
    found, first, begin = [], 0, 0
    for bucket, lengths in zip(layout.buckets, layout.row_lengths(), strict=True):
        size, last = bucket.length, first + bucket.num_rows
        step = 1 if size > SHORT else max(1, heads * CHUNK // size)
        for row in range(first, last, step):
            at = begin + (row - first) * size
            if size > SHORT:
                stop = lengths[row - first]
                found += [
                    Chunk(row, row + 1, at + t, size, min(CHUNK, stop - t), None)
                    for t in range(0, stop, CHUNK)
                ]
            else:
                end = min(row + step, last)
                found += [Chunk(row, end, at, size, size, head) for head in range(heads)]
        first, begin = last, begin + bucket.num_rows * size
    return found


class LongGdpa(torch.autograd.Function):
    """dV = P^T dO; dS = (dO V^T) * Act'(S); dQ = dS K; dK = dS^T Q; P = Act(S) anew."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, chunks: list[Chunk], names: tuple[str, ...]
    ) -> Tensor:
        """Act(q k^T) v of [P, H, K] and [R, H, N, K]; keeps its inputs only."""
        q = q.contiguous()
        ctx.save_for_backward(q, k, v)
        ctx.chunks, ctx.names = chunks, names
        out, room = torch.zeros_like(q), _room(chunks, q, k)
        for chunk in chunks:
            p = _scores(chunk, q, k, room)
            _activate_(p, chunk.names(names))
            torch.bmm(p, chunk.keys(v), out=chunk.slots(out))
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        """Sums over chunks are kept in float32 at least."""
        q, k, v = ctx.saved_tensors
        grad, wide = grad.contiguous(), torch.promote_types(q.dtype, torch.float32)
        dq, dk, dv = torch.zeros_like(q), *(k.new_zeros(k.shape, dtype=wide) for _ in range(2))
        rooms = [_room(ctx.chunks, q, k) for _ in range(3)]
        for chunk in ctx.chunks:
            names, pull = chunk.names(ctx.names), chunk.slots(grad)
            s = _scores(chunk, q, k, rooms[0])
            p = _part(rooms[1], s.shape).copy_(s)
            _activate_(p, names)
            chunk.keys(dv).add_(torch.bmm(p.transpose(1, 2), pull))
            ds = _scores(chunk, grad, v, rooms[2])
            _slope_(ds, s, names)
            chunk.keys(dk).add_(torch.bmm(ds.transpose(1, 2), chunk.slots(q)))
            torch.bmm(ds, chunk.keys(k), out=chunk.slots(dq))
        return dq, dk.to(k.dtype), dv.to(v.dtype), None, None


def _room(chunks: Sequence[Chunk], q_PHK: Tensor, k_RHNK: Tensor) -> Tensor:
    """Place for the scores of any chunk."""
    heads, keys = k_RHNK.shape[1:3]
    events = max((heads if c.head is None else c.last - c.first) * c.count for c in chunks)
    return q_PHK.new_empty(events * keys)


def _part(room: Tensor, shape: Sequence[int]) -> Tensor:
    return room[: shape[0] * shape[1] * shape[2]].view(*shape)


def _scores(chunk: Chunk, x_PHK: Tensor, k_RHNK: Tensor, room: Tensor) -> Tensor:
    """x k^T of a chunk, [n, t, N], in place of what `room` held."""
    x_ntK, k_nNK = chunk.slots(x_PHK), chunk.keys(k_RHNK)
    out = _part(room, (*x_ntK.shape[:2], k_nNK.shape[1]))
    return torch.bmm(x_ntK, k_nNK.transpose(1, 2), out=out)


def _activate_(s_HtN: Tensor, names: tuple[str, ...]) -> None:
    for part, name in _by_name(names, s_HtN):
        if name == "gelu":
            aten.gelu_(part[0])
        elif name == "silu":
            aten.silu_(part[0])
        elif name in ("relu", "relu_square"):
            part[0].relu_()
            if name == "relu_square":
                part[0].square_()


def _slope_(ds_HtN: Tensor, s_HtN: Tensor, names: tuple[str, ...]) -> None:
    """ds * Act'(s), in place of ds; s is used up."""
    for (ds, s), name in _by_name(names, ds_HtN, s_HtN):
        if name == "gelu":
            aten.gelu_backward.grad_input(ds, s, grad_input=ds)
        elif name == "silu":
            aten.silu_backward.grad_input(ds, s, grad_input=ds)
        elif name == "relu":
            ds.mul_(s > 0)
        elif name == "relu_square":
            ds.mul_(s.relu_().mul_(2))


def _by_name(names: tuple[str, ...], *values: Tensor) -> Iterator[tuple[list[Tensor], str]]:
    """Heads of each activation together; names are taken by the heads in turn."""
    if len(names) == 1:
        yield list(values), names[0]
        return
    for i, name in enumerate(names[: len(values[0])]):
        yield [x[i :: len(names)] for x in values], name
