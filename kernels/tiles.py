"""Tiles of a `Layout`: which stretch of which row each GPU program works on.

Suffixes: B rows, Z tiles.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.layout import Layout

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


@dataclass(frozen=True, slots=True)
class Tiles:
    """Where rows begin among the slots, how long they are, and their tiles, longest row first.

    Programs start in order, so the rows that take longest start first.
    """

    begin_B: Tensor  # int64 slot
    length_B: Tensor  # int64
    row_Z: Tensor  # int32
    start_Z: Tensor  # int32, the tile's first event within its row

    def tensors(self) -> list[Tensor]:
        """The four of them, in the order in which programs take them."""
        return [self.begin_B, self.length_B, self.row_Z, self.start_Z]


def tiles_of(layout: Layout, size: int) -> Tiles:
    """Every row cut into tiles of `size` events; rows without events have none."""
    length_B = layout.lengths_B
    order_B = torch.argsort(length_B, descending=True, stable=True)
    tiles_B = (length_B[order_B] + size - 1) // size
    row_Z = torch.repeat_interleave(order_B, tiles_B)
    first_Z = torch.repeat_interleave(tiles_B.cumsum(0) - tiles_B, tiles_B)
    start_Z = (torch.arange(len(row_Z), device=row_Z.device) - first_Z) * size
    return Tiles(layout.begin_B, length_B, row_Z.int(), start_Z.int())


def chip_of(device: torch.device) -> int:
    """90 for sm_90; 0 where programs are interpreted."""
    if device.type != "cuda":
        return 0
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


def launch_of(op: str, chip: int) -> dict[str, int]:
    """Warps and stages of an op where programs spill registers by Triton's own choice."""
    if op == "jagged_pool":
        return {"num_warps": 8}
    if op == "attention" and chip >= 100:
        return {"num_warps": 8, "num_stages": 2}
    return {}


def block_of(size: int) -> int:
    """The power of two, at least 16, that covers `size`: what a matrix unit takes."""
    return max(16, triton.next_power_of_2(size))


def operand(dtype: torch.dtype) -> tl.dtype:
    """What matrix products multiply: the tensors' own numbers.

    The interpreter's bfloat16 products are wrong, so there they are widened first.
    """
    if INTERPRETED and dtype == torch.bfloat16:
        return tl.float32
    return {
        torch.float64: tl.float64,
        torch.float32: tl.float32,
        torch.float16: tl.float16,
        torch.bfloat16: tl.bfloat16,
    }[dtype]


def accumulator(dtype: torch.dtype) -> tl.dtype:
    """What sums are kept in."""
    return tl.float64 if dtype == torch.float64 else tl.float32


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """`accumulator` as torch names it."""
    return torch.float64 if dtype == torch.float64 else torch.float32
