"""Pooling on dense buckets of a `Layout`; long rows one by one, equal ones at once."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.layout import Bucket, Layout
from kernels.pooling.long import LongSeeds

LONG = 100  # slots a row, from which on rows are read one by one
EQUAL = 32  # slots a row, from which on flash attention reads equal rows at once


def seed_attention(q_SHK: Tensor, k_PHK: Tensor, v_PHK: Tensor, layout: Layout) -> Tensor:
    """[B, S, H, K]: softmax over each row's events."""
    if not layout.buckets:
        return v_PHK.new_zeros(layout.num_rows, *q_SHK.shape)
    first = layout.buckets[0]
    if len(layout.buckets) == 1 and first.valid_bT is None and first.length >= EQUAL:
        return layout.put_rows(_at_once(q_SHK, k_PHK, v_PHK, first))
    if layout.num_slots < LONG * len(layout.order_R):
        return layout.put_rows(_by_bucket(q_SHK, k_PHK, v_PHK, layout))
    out_BSHK: Tensor = LongSeeds.apply(q_SHK, k_PHK, v_PHK, layout)
    return out_BSHK


def _at_once(q_SHK: Tensor, k_PHK: Tensor, v_PHK: Tensor, rows: Bucket) -> Tensor:
    """Rows of one length are views of [b, T]: no mask, no copy, and no weights are kept."""
    q_bHSK = q_SHK.transpose(0, 1).expand(rows.num_rows, -1, -1, -1)
    shape = (rows.num_rows, rows.length, *k_PHK.shape[1:])
    k_bHTK, v_bHTK = (x.view(shape).transpose(1, 2) for x in (k_PHK, v_PHK))
    return F.scaled_dot_product_attention(q_bHSK, k_bHTK, v_bHTK).transpose(1, 2)


def _by_bucket(q_SHK: Tensor, k_PHK: Tensor, v_PHK: Tensor, layout: Layout) -> Tensor:
    """The seeds' scores of all events are one flat product."""
    _, heads, width = q_SHK.shape
    q_HKS = (q_SHK * width**-0.5).permute(1, 2, 0)
    if heads == 1:
        score_PHS = torch.mm(k_PHK[:, 0], q_HKS[0])[:, None]
    else:
        score_PHS = torch.bmm(k_PHK.transpose(0, 1), q_HKS).transpose(0, 1)
    blocks = zip(layout.buckets, layout.blocks(score_PHS), layout.blocks(v_PHK), strict=True)
    parts = []
    for bucket, score_bTHS, v_bTHK in blocks:
        weight_bTHS = bucket.hidden(score_bTHS).softmax(1)
        if heads == 1:
            pooled_bSHK = torch.bmm(weight_bTHS[:, :, 0].transpose(1, 2), v_bTHK[:, :, 0])[
                :, :, None
            ]
        else:
            pooled_bSHK = torch.einsum("bths,bthk->bshk", weight_bTHS, v_bTHK)
        parts.append(pooled_bSHK)
    return torch.cat(parts)
