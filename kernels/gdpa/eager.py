"""GDPA on dense buckets of a `Layout`: two batched matrix products and one activation.

Long rows are taken one by one: there a free slot costs more than a few small ops.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.gdpa.long import LongGdpa
from kernels.gdpa.reference import activate
from kernels.layout import Layout

LONG = 128  # slots a row, from which on rows are taken one by one


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
    if layout.num_slots >= LONG * len(layout.order_R):
        out_PHK: Tensor = LongGdpa.apply(q_PHK, k_BHNK, v_BHNK, layout, names)
        return out_PHK
    of_rows = (layout.rows(k_BHNK), layout.rows(v_BHNK))
    blocks = zip(layout.blocks(q_PHK), *of_rows, strict=True)
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
