"""What a row holds once, brought to its events.

Suffixes: B rows, P slots of a layout, b rows of a bucket, T its length, X and Y widths.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels import Layout


def spread_rows(values_BX: Tensor, layout: Layout) -> Tensor:
    """[P, X]: each row's vector at every slot of the row."""
    if not layout.buckets:
        return values_BX.new_zeros(0, values_BX.shape[1])
    rows = zip(layout.buckets, layout.rows(values_BX), strict=True)
    spread = [row_bX[:, None].expand(-1, b.length, -1).flatten(0, 1) for b, row_bX in rows]
    return torch.cat(spread)


def per_row_linear(values_PX: Tensor, weight_BXY: Tensor, layout: Layout) -> Tensor:
    """[P, Y]: each slot's vector times the matrix of its row."""
    if not layout.buckets:
        return values_PX.new_zeros(0, weight_BXY.shape[2])
    blocks = zip(layout.blocks(values_PX), layout.rows(weight_BXY), strict=True)
    return torch.cat([torch.bmm(x_bTX, w_bXY).flatten(0, 1) for x_bTX, w_bXY in blocks])
