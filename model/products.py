"""Products of a history and the ad, straight to the heads: the shortest path on which they meet.

Kunlun's own paths from an event to the loss are long (generated weights, seeds, an interaction of
all tokens), and small models learn late on them which events help which ads. Our addition [C]: of
each tower, decayed sums of its events' embeddings, and products of these with the ad,

    v_e = [n(b_e1) .. n(b_eA), n(b_e1) * .. * n(b_eA)]                    the last one if A > 1
    z_k = sum_e exp(-age_e lambda_k) v_e / sqrt(longest configured history)
    y   = (P [z_1 .. z_K]) * (C n(ad))

n: LayerNorm without weights; b_ea: the embedding of attribute a; P, C: affine; lambda: learned. A
sum, not a mean: counts matter. Embeddings are read as they are, and nothing is projected per event:
an event costs 2 K V FLOPs. Only C sees the ad, so that one pass over a history serves every ad.
The compressor reads the products too: what heads know and vectors lack, no student can learn.

Suffixes: U histories, B rows, E events, P slots, T a bucket's length, A attributes, D embedding
width, V = width of v, K decays, X the ad's tokens, R products.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import kernels
from kernels import Layout
from model.baselines.widths import history_width
from model.config import EventType, ModelConfig
from model.embedding import EventInputs

DAY_S = 86_400.0


class AdProducts(nn.Module):
    """`ad_products` products of one tower's decayed sums and projections of the ad."""

    def __init__(self, event: EventType, num_ad_tokens: int, config: ModelConfig) -> None:
        super().__init__()
        self.width, self.scale = config.embedding_dim, event.max_len**-0.5
        # once a day first of all: from e^-1 to e a day
        decays = config.ad_product_decays
        start_K = torch.linspace(-1.0, 1.0, decays) if decays > 1 else torch.zeros(1)
        self.log_rate_K = nn.Parameter(start_K)
        self.mix = nn.Linear(decays * history_width(event, config), config.ad_products)
        self.ad = nn.Linear(num_ad_tokens * config.width, config.ad_products)

    def forward(self, inputs: EventInputs, ad_BX: Tensor, owner_B: Tensor | None = None) -> Tensor:
        """[B, R]; with `owner_B` row b has history `owner_B[b]`."""
        sums_UR = self.mix(self.moments(inputs))
        sums_BR = sums_UR if owner_B is None else sums_UR.index_select(0, owner_B)
        return sums_BR * self.ad(_norm(ad_BX))

    def moments(self, inputs: EventInputs) -> Tensor:
        """[U, K * V]: z of each history; no events give zeros."""
        blocks = [block.unflatten(1, (-1, self.width)) for block in inputs.embedded]
        normed_EAD = _norm(torch.cat(blocks, dim=1))
        state_EV = normed_EAD.flatten(1)
        if normed_EAD.shape[1] > 1:
            state_EV = torch.cat([state_EV, _product(normed_EAD)], dim=1)
        days_E = inputs.age_E / DAY_S
        weight_EK = torch.exp(-days_E[:, None] * self.log_rate_K.exp()) * self.scale
        layout = kernels.arrange(inputs.lengths_B)
        return _weighted_sums(layout.pack(weight_EK), layout.pack(state_EV), layout)


def _norm(x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:])


def _product(normed_EAD: Tensor) -> Tensor:
    """[E, D], over the attributes; autograd's own `prod` is slow on the CPU."""
    first_ED, *others = normed_EAD.unbind(1)
    for other_ED in others:
        first_ED = first_ED * other_ED
    return first_ED


def _weighted_sums(weight_PK: Tensor, state_PV: Tensor, layout: Layout) -> Tensor:
    """[U, K * V]: every weight times every number, summed over each row's events."""
    if not layout.buckets:
        return state_PV.new_zeros(layout.num_rows, weight_PK.shape[1] * state_PV.shape[1])
    blocks = zip(layout.blocks(weight_PK), layout.blocks(state_PV), strict=True)
    parts = [torch.bmm(w_bTK.transpose(1, 2), s_bTV).flatten(1) for w_bTK, s_bTV in blocks]
    return layout.put_rows(torch.cat(parts))
