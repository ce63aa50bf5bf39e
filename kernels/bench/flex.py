"""FlexAttention over flat events, the rival on GPUs: a document mask keeps rows apart."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention


def attention(
    lengths_B: Tensor, *, window: int | None = None, block: int | None = None
) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Compiled attention on [1, H, E, K] within rows; its block mask is built beforehand."""
    total = int(lengths_B.sum())
    row_E = torch.repeat_interleave(torch.arange(len(lengths_B)), lengths_B).cuda()
    first_B = lengths_B.cumsum(0) - lengths_B
    at_E = torch.arange(total, device="cuda") - first_B.cuda()[row_E]

    def seen(_batch: Tensor, _head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        same = row_E[i] == row_E[j]
        if window is not None:
            same = same & ((at_E[i] - at_E[j]).abs() <= window)
        if block is not None:
            same = same & (at_E[i] // block == at_E[j] // block)
        return same

    mask = create_block_mask(seen, None, None, total, total, device="cuda")
    compiled = torch.compile(flex_attention)

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out: Tensor = compiled(q, k, v, block_mask=mask)
        return out

    return run
