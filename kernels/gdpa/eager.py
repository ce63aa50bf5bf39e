"""GDPA on dense buckets of a `Layout`: two batched matrix products and one activation.

Uneven batches with long rows go through chunks whose scores stay in the cache (long.py).
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.gdpa.long import SHORT, LongGdpa, chunks_of
from kernels.gdpa.reference import activate
from kernels.layout import Layout


def gdpa(
    q_PHK: Tensor,
    k_BHNK: Tensor,
    v_BHNK: Tensor,
    layout: Layout,
    *,
    scale: float,
    activation: str | tuple[str, ...] = "gelu",
) -> Tensor:
    """Act(q k^T * scale) v, bucket by bucket; a single head needs no transposed copies."""
    if not layout.buckets:
        return torch.zeros_like(q_PHK)
    names = (activation,) if isinstance(activation, str) else activation
    k_BHNK = k_BHNK * scale
    uneven = any(b.valid_bT is not None for b in layout.buckets)
    if uneven and layout.buckets[-1].length > SHORT:
        kv = (layout.take_rows(x) for x in (k_BHNK, v_BHNK))
        out: Tensor = LongGdpa.apply(q_PHK, *kv, chunks_of(layout, q_PHK.shape[1]), names)
        return out
    blocks = zip(layout.blocks(q_PHK), layout.rows(k_BHNK), layout.rows(v_BHNK), strict=True)
    parts = [_block(q, k, v, names).flatten(0, 1) for q, k, v in blocks]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _block(q_bTHK: Tensor, k_bHNK: Tensor, v_bHNK: Tensor, names: tuple[str, ...]) -> Tensor:
    if q_bTHK.shape[2] == 1:
        score_bTN = torch.bmm(q_bTHK[:, :, 0], k_bHNK[:, 0].transpose(1, 2))
        return torch.bmm(activate(score_bTN, names[0]), v_bHNK[:, 0])[:, :, None]
    score_bHTN = torch.matmul(q_bTHK.transpose(1, 2), k_bHNK.transpose(-1, -2))
    return torch.matmul(_by_head(score_bHTN, names), v_bHNK).transpose(1, 2)


def _by_head(score_bHTN: Tensor, names: tuple[str, ...]) -> Tensor:
    """Head h gets activation h of `names`, which are taken in turn."""
    if len(names) == 1:
        return activate(score_bHTN, names[0])
    heads = enumerate(score_bHTN.unbind(1))
    return torch.stack([activate(score, names[h % len(names)]) for h, score in heads], dim=1)
