"""Jagged rows in memory: where the events of each row lie, so that ops run on dense blocks.

Suffixes: B rows, E events (flat, row-major), P slots, b rows of a bucket, T a bucket's length.

`arrange` sorts the rows by length into a few buckets, each a dense [b, T] block of slots, so that
matrix ops are batched without padding to the longest row; rows without events have no slot at
all. A batch whose rows are equally long needs no copy. Values stay in the layout from one op to the
next: pack once, unpack once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

# a bucket costs about as much as this many more slots: the fixed price of a few small ops
BUCKET_COST = 1_500
MAX_EDGES = 16


@dataclass(frozen=True, slots=True)
class Bucket:
    """A dense block of `num_rows` times `length` slots; buckets follow each other."""

    num_rows: int
    length: int
    valid_bT: Tensor | None  # None: every slot holds an event

    def hidden(self, score_bTX: Tensor) -> Tensor:
        """Scores with those of free slots at -inf."""
        if self.valid_bT is None:
            return score_bTX
        shape = (*self.valid_bT.shape, *([1] * (score_bTX.dim() - 2)))
        return score_bTX.masked_fill(~self.valid_bT.view(shape), float("-inf"))


def of_rows(values_PHK: Tensor, sizes: list[int]) -> list[Tensor]:
    """Every row's events by head, [H, t, K] views; one split, for views one by one take longer."""
    return list(values_PHK.transpose(0, 1).split(sizes, 1)[::2])


def clear_free(sizes: list[int], *values: Tensor) -> None:
    """Zeros in the free slots of values [P, ...]."""
    torch._foreach_zero_([part for x in values for part in x.split(sizes)[1::2]])


@dataclass(frozen=True, slots=True)
class Layout:
    """Slots of a jagged batch. `order_R` lists the rows that have events, in bucket order."""

    lengths_B: Tensor
    begin_B: Tensor  # int64, a row's first slot; 0 for rows without events
    order_R: Tensor
    slot_E: Tensor | None  # None: slot i holds event i
    buckets: tuple[Bucket, ...]
    num_slots: int
    all_rows_in_order: bool

    @property
    def num_rows(self) -> int:
        """Rows of the batch, empty ones included."""
        return int(self.lengths_B.shape[0])

    def to(self, device: str | torch.device) -> Layout:
        """The same layout with its tensors on a device."""
        return Layout(
            lengths_B=self.lengths_B.to(device),
            begin_B=self.begin_B.to(device),
            order_R=self.order_R.to(device),
            slot_E=None if self.slot_E is None else self.slot_E.to(device),
            buckets=tuple(
                b if b.valid_bT is None else replace(b, valid_bT=b.valid_bT.to(device))
                for b in self.buckets
            ),
            num_slots=self.num_slots,
            all_rows_in_order=self.all_rows_in_order,
        )

    def require_slots(self, *values: Tensor) -> None:
        """`ValueError` unless every tensor has one entry per slot: kernels would leave memory."""
        for value in values:
            if value.shape[0] != self.num_slots:
                raise ValueError(
                    f"values must have {self.num_slots} slots, got {value.shape[0]}; "
                    "pack them into this layout first"
                )

    def pack(self, values_EX: Tensor) -> Tensor:
        """Flat events to slots; free slots hold zeros."""
        if self.slot_E is None:
            return values_EX
        return _Spread.apply(values_EX, self.slot_E, self.num_slots)

    def unpack(self, values_PX: Tensor) -> Tensor:
        """Slots to flat events."""
        if self.slot_E is None:
            return values_PX
        return _Collect.apply(values_PX, self.slot_E)

    def blocks(self, values_PX: Tensor) -> list[Tensor]:
        """A slot tensor as one [b, T, ...] view per bucket (one split: its gradient is one cat)."""
        parts = values_PX.split([b.num_rows * b.length for b in self.buckets])
        return [
            part.view(b.num_rows, b.length, *part.shape[1:])
            for b, part in zip(self.buckets, parts, strict=True)
        ]

    def rows(self, values_BX: Tensor) -> list[Tensor]:
        """Per-row values as one [b, ...] view per bucket."""
        return list(self.take_rows(values_BX).split([b.num_rows for b in self.buckets]))

    def row_lengths(self) -> list[list[int]]:
        """Events of every row, one list per bucket."""
        length_R = self.lengths_B[self.order_R]
        return [part.tolist() for part in length_R.split([b.num_rows for b in self.buckets])]

    def sizes(self) -> list[int]:
        """Of every row that has events, in bucket order: its events, then its free slots."""
        found = []
        begins, lengths = self.begin_B.tolist(), self.lengths_B.tolist()
        stop = self.num_slots
        for row in reversed(self.order_R.tolist()):
            end = begins[row] + lengths[row]
            found += [stop - end, lengths[row]]
            stop = begins[row]
        return found[::-1]

    def take_rows(self, values_BX: Tensor) -> Tensor:
        """Per-row values in bucket order, empty rows left out."""
        if self.all_rows_in_order:
            return values_BX
        return _Collect.apply(values_BX, self.order_R)

    def put_rows(self, values_RX: Tensor) -> Tensor:
        """Inverse of `take_rows`; empty rows get zeros."""
        if self.all_rows_in_order:
            return values_RX
        return _Spread.apply(values_RX, self.order_R, self.num_rows)


class _Spread(torch.autograd.Function):
    """zeros[index] = values for distinct indices: both directions are plain copies."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, index: Tensor, size: int) -> Tensor:
        """Scatter rows to distinct places."""
        ctx.save_for_backward(index)
        return values.new_zeros(size, *values.shape[1:]).index_copy_(0, index, values)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        """Gather them back."""
        (index,) = ctx.saved_tensors
        return _Collect.apply(grad, index), None, None


class _Collect(torch.autograd.Function):
    """values[index] for distinct indices (autograd's own backward would add, row by row)."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, index: Tensor) -> Tensor:
        """Gather rows."""
        ctx.save_for_backward(index)
        ctx.size = values.shape[0]
        return values.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        """Scatter them back."""
        (index,) = ctx.saved_tensors
        return _Spread.apply(grad, index, ctx.size), None


def arrange(lengths_B: Tensor) -> Layout:
    """The cheapest bucketed layout of rows with these lengths (int64, on the CPU)."""
    lengths = lengths_B.numpy()
    order = np.argsort(lengths, kind="stable")
    order = order[np.searchsorted(lengths[order], 1) :]
    by_length = lengths[order]
    buckets: list[Bucket] = []
    begin_of_row = np.zeros(len(lengths), np.int64)
    slots = first = 0
    for last in _cut(by_length):
        length, count = int(by_length[last - 1]), last - first
        begin_of_row[order[first:last]] = slots + length * np.arange(count)
        valid = None
        if by_length[first] != length:
            valid = torch.from_numpy(np.arange(length) < by_length[first:last, None])
        buckets.append(Bucket(count, length, valid))
        slots += length * count
        first = last
    ends = np.cumsum(lengths)
    slot = np.repeat(begin_of_row - ends + lengths, lengths) + np.arange(lengths.sum())
    in_place = len(slot) == slots and bool((slot == np.arange(slots)).all())
    in_order = len(order) == len(lengths) and bool((order == np.arange(len(order))).all())
    return Layout(
        lengths_B=lengths_B,
        begin_B=torch.from_numpy(begin_of_row),
        order_R=torch.from_numpy(order),
        slot_E=None if in_place else torch.from_numpy(slot),
        buckets=tuple(buckets),
        num_slots=slots,
        all_rows_in_order=in_order,
    )


def _cut(by_length: np.ndarray) -> list[int]:
    """Ends of the buckets over ascending lengths: least slots plus `BUCKET_COST` per bucket."""
    if len(by_length) == 0:
        return []
    grid = np.unique(np.quantile(by_length, np.linspace(0, 1, MAX_EDGES + 1), method="higher"))
    ends = np.searchsorted(by_length, grid, side="right")
    best, previous = [0.0], [0]
    for i, end in enumerate(ends):
        starts = np.concatenate([[0], ends[:i]])
        costs = np.array(best) + (end - starts) * float(grid[i]) + BUCKET_COST
        previous.append(int(costs.argmin()))
        best.append(float(costs.min()))
    cuts, at = [], len(ends)
    while at > 0:
        cuts.append(int(ends[at - 1]))
        at = previous[at]
    return cuts[::-1]
