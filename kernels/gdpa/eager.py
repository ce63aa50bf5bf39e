"""GDPA on dense buckets of a `Layout`: two batched matrix products and one activation."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.gdpa.reference import activate
from kernels.layout import Layout


def gdpa(
    q_PHK: Tensor,
    k_BHNK: Tensor,
    v_BHNK: Tensor,
    layout: Layout,
    *,
    scale: float,
    activation: str = "gelu",
) -> Tensor:
    """Act(q k^T * scale) v, bucket by bucket; a single head needs no transposed copies."""
    k_RHNK, v_RHNK = layout.take_rows(k_BHNK * scale), layout.take_rows(v_BHNK)
    parts = []
    for bucket in layout.buckets:
        q_bHTK = bucket.block(q_PHK).transpose(1, 2)
        score_bHTN = torch.matmul(q_bHTK, bucket.rows(k_RHNK).transpose(-1, -2))
        out_bHTK = torch.matmul(activate(score_bHTN, activation), bucket.rows(v_RHNK))
        parts.append(out_bHTK.transpose(1, 2).flatten(0, 1))
    if not parts:
        return torch.zeros_like(q_PHK)
    return parts[0] if len(parts) == 1 else torch.cat(parts)
