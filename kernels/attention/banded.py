"""Windowed attention on long rows: flat tiles of queries against overlapping views of the keys.

Slots of all rows lie behind each other; a tile of `TILE` of them sees the tiles around it that the
window reaches, through strided views, so that nothing is padded or gathered. A mask keeps rows
apart. Tiles are taken in groups, whose masks and gradients are the only scratch.

Suffixes: P slots, H heads, K head width, Z tiles of a group, T slots of a tile, L keys of a tile.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

TILE = 64
GROUP = 32  # tiles


def banded_attention(
    q_PHK: Tensor, k_PHK: Tensor, v_PHK: Tensor, row_P: Tensor, window: int
) -> Tensor:
    """softmax(q k^T / sqrt(K)) v over |i - j| <= window within equal `row_P`."""
    num_slots, reach = q_PHK.shape[0], -(-window // TILE)
    after = -num_slots % TILE
    halo = reach * TILE
    q = _extended(q_PHK, 0, after)
    k, v = (_extended(x, halo, halo + after) for x in (k_PHK, v_PHK))
    # slots that pad are rows of their own kind: queries among them see each other only
    row = F.pad(row_P, (halo, halo + after), value=torch.iinfo(row_P.dtype).min)
    out: Tensor = _Banded.apply(q, k, v, row, window, reach)
    return out[:num_slots]


class _Banded(torch.autograd.Function):
    """Flash attention on groups of tiles, both ways."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, row: Tensor, window: int, reach: int
    ) -> Tensor:
        """q is [Z T, H, K]; k and v have `reach` more tiles on both sides."""
        out, sums = torch.empty_like(q), []
        band_TL = _band(window, reach, q.dtype)
        for first in range(0, len(q) // TILE, GROUP):
            q_ZHTK, k_ZHLK, v_ZHLK, bias = _views(q, k, v, row, band_TL, first)
            part, log_sum = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
                q_ZHTK, k_ZHLK, v_ZHLK, attn_mask=bias
            )
            _queries(out, first).copy_(part)
            sums.append(log_sum)
        ctx.save_for_backward(q, k, v, row, out, *sums)
        ctx.window, ctx.reach = window, reach
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        """A key's gradient is the sum over the tiles that see it."""
        q, k, v, row, out, *sums = ctx.saved_tensors
        grad, dq = grad.contiguous(), torch.empty_like(q)
        dk, dv = torch.zeros_like(k), torch.zeros_like(v)
        band_TL = _band(ctx.window, ctx.reach, q.dtype)
        for log_sum, first in zip(sums, range(0, len(q) // TILE, GROUP), strict=True):
            q_ZHTK, k_ZHLK, v_ZHLK, bias = _views(q, k, v, row, band_TL, first)
            parts = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
                _queries(grad, first),
                *(q_ZHTK, k_ZHLK, v_ZHLK, _queries(out, first), log_sum),
                *(0.0, False),
                attn_mask=bias,
            )
            _queries(dq, first).copy_(parts[0])
            for whole, part_ZHLK in zip((dk, dv), parts[1:], strict=True):
                _add_overlapping(whole, part_ZHLK, first)
        return dq, dk, dv, None, None, None


def _extended(x_PHK: Tensor, before: int, after: int) -> Tensor:
    return F.pad(x_PHK, (0, 0, 0, 0, before, after)) if before + after else x_PHK.contiguous()


def _band(window: int, reach: int, dtype: torch.dtype) -> Tensor:
    """0 within the window of a tile's queries over the keys it is given, else -inf."""
    at_T = torch.arange(TILE)[:, None] + reach * TILE
    far_TL = (at_T - torch.arange((2 * reach + 1) * TILE)).abs() > window
    return torch.zeros(far_TL.shape, dtype=dtype).masked_fill_(far_TL, float("-inf"))


def _views(
    q: Tensor, k: Tensor, v: Tensor, row: Tensor, band_TL: Tensor, first: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries, keys, values and mask of the group that starts at tile `first`."""
    q_ZHTK, span = _queries(q, first), band_TL.shape[1]
    num_tiles, heads, _, width = q_ZHTK.shape
    row_ZL = row[first * TILE :].as_strided((num_tiles, span), (TILE, 1))
    own = (span - TILE) // 2
    apart_ZTL = row_ZL[:, own : own + TILE, None] != row_ZL[:, None]
    bias_ZTL = band_TL.expand(apart_ZTL.shape).masked_fill(apart_ZTL, float("-inf"))
    size, step = heads * width, TILE * heads * width
    k_ZHLK, v_ZHLK = (
        x[first * TILE :].as_strided((num_tiles, heads, span, width), (step, width, size, 1))
        for x in (k, v)
    )
    return q_ZHTK, k_ZHLK, v_ZHLK, bias_ZTL[:, None]


def _queries(x: Tensor, first: int) -> Tensor:
    """[Z, H, T, K] view of a group's own slots."""
    part = x[first * TILE : (first + GROUP) * TILE]
    return part.view(-1, TILE, *x.shape[1:]).transpose(1, 2)


def _add_overlapping(whole: Tensor, part_ZHLK: Tensor, first: int) -> None:
    """Add each tile's keys where they lie in `whole`, one stretch of `TILE` after another."""
    tiles = whole.view(-1, TILE, *whole.shape[1:])
    part_ZLHK = part_ZHLK.transpose(1, 2)
    for i in range(part_ZLHK.shape[1] // TILE):
        stretch = part_ZLHK[:, i * TILE : (i + 1) * TILE]
        tiles[first + i : first + i + len(stretch)] += stretch
