"""Products of a history and the ad, straight to the heads: the shortest path on which they meet.

Kunlun's own paths from an event to the loss are long (generated weights, seeds, an interaction of
all tokens), and small models learn late on them which events help which ads. Our addition [C], per
channel r of a tower with attributes a = 1 .. A:

    s_e = (P_1 n(b_e1))_r  prod_{a > 1} (1 + P_a n(b_ea))_r  exp(-age_e lambda_r)
    y_r = sum_e s_e / sqrt(longest configured history)  *  (C n(ad))_r

n: LayerNorm without weights; b: an event's embedded attributes; P, C: affine. A sum, not a mean:
counts matter. Only C sees the ad, so that one pass over a history serves every ad.

Suffixes: U histories, B rows, E events, A attributes, D embedding width, X the ad's tokens, R
channels.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import kernels
from model.config import EventType, ModelConfig
from model.embedding import EventInputs

DAY_S = 86_400.0
LOG_RATES = (-2.0, 2.0)  # decay rates start between e^-2 and e^2 a day


class AdProducts(nn.Module):
    """`ad_products` products of one tower's decayed sums and projections of the ad."""

    def __init__(self, event: EventType, num_ad_tokens: int, config: ModelConfig) -> None:
        super().__init__()
        channels = config.ad_products
        self.width, self.scale = config.embedding_dim, event.max_len**-0.5
        self.attributes = nn.ModuleList(
            nn.Linear(config.embedding_dim, channels) for _ in event.attributes
        )
        self.log_rate_R = nn.Parameter(torch.linspace(*LOG_RATES, channels))
        self.ad = nn.Linear(num_ad_tokens * config.width, channels)

    def forward(self, inputs: EventInputs, ad_BX: Tensor, owner_B: Tensor | None = None) -> Tensor:
        """[B, R]; with `owner_B` row b has history `owner_B[b]`; no events give zeros."""
        sums_UR = self.sums(inputs)
        sums_BR = sums_UR if owner_B is None else sums_UR.index_select(0, owner_B)
        return sums_BR * self.ad(_norm(ad_BX))

    def sums(self, inputs: EventInputs) -> Tensor:
        """[U, R]: what the events of each history add up to, each decayed by its age."""
        blocks = [block.unflatten(1, (-1, self.width)) for block in inputs.embedded]
        embedded_AED = (column for block in blocks for column in block.unbind(1))
        state_ER = torch.exp(-(inputs.age_E / DAY_S)[:, None] * self.log_rate_R.exp())
        for place, (project, embedded_ED) in enumerate(
            zip(self.attributes, embedded_AED, strict=True)
        ):
            projected_ER = project(_norm(embedded_ED))
            state_ER = state_ER * (projected_ER if place == 0 else 1 + projected_ER)
        layout = kernels.arrange(inputs.lengths_B)
        return kernels.jagged_pool(layout.pack(state_ER), layout, mode="sum") * self.scale


def _norm(x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:])
