"""Pooling on dense buckets of a `Layout`; seeds read long rows one by one."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.layout import Layout
from kernels.pooling.long import LongSeeds

LONG = 100  # slots a row, from which on rows are read one by one


def seed_attention(q_SHK: Tensor, k_PHK: Tensor, v_PHK: Tensor, layout: Layout) -> Tensor:
    """[B, S, H, K]: softmax over each row's events."""
    if not layout.buckets:
        return v_PHK.new_zeros(layout.num_rows, *q_SHK.shape)
    if layout.num_slots < LONG * len(layout.order_R):
        return layout.put_rows(_by_bucket(q_SHK, k_PHK, v_PHK, layout))
    q_HSK = (q_SHK * q_SHK.shape[2] ** -0.5).transpose(0, 1).contiguous()
    out_RHSK: Tensor = LongSeeds.apply(q_HSK, k_PHK, v_PHK, layout.spans())
    return layout.put_rows(out_RHSK.transpose(1, 2))


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
