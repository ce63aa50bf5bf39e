"""The direct path: what heads and compressor read of a history with the ad, beside X and H.

Our addition to Kunlun. Between an event and the heads lie generated weights, two poolings and sums
of many products: there a small model learns late which events speak for which ads. This path has
one product:

    m_k = T^-1/2 sum_e exp(-age_e / tau_k) [Norm(e_1) .. Norm(e_A)]      k = 1..K
    p   = (V [m_1 .. m_K] + v) * (U Norm(ad) + u)

with the embeddings of an event's A attributes as the tables hold them, learned time constants
tau_k, and the ad's own tokens; * is element by element. It is attention without a softmax whose
query is the ad (linear attention, arXiv 2006.16236, section 3.2, with a decay by age). Sums of
events go through V once a row, so that an event costs K products of its embeddings' width.

Suffixes: B rows, U histories, E events (flat), P slots, b rows of a bucket, T its length,
A attributes, D embedding width, K time constants, X ad tokens side by side, R rank.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import kernels
from kernels import Layout
from model.baselines.widths import num_ad_tokens
from model.config import EventType, FeatureSet, ModelConfig
from model.embedding import EventInputs


class DirectPath(nn.Module):
    """R products of one tower's events with the ad."""

    def __init__(self, event: EventType, features: FeatureSet, config: ModelConfig) -> None:
        super().__init__()
        self.width = config.embedding_dim
        tau_K = torch.tensor(config.direct_tau_s)
        self.log_rate_K = nn.Parameter(-tau_K.log())
        moments = len(tau_K) * len(event.attributes) * self.width
        self.of_history = nn.Linear(moments, config.direct_rank)
        self.of_ad = nn.Linear(num_ad_tokens(features) * config.width, config.direct_rank)

    def forward(self, events: EventInputs, ad_BX: Tensor, owner_B: Tensor | None = None) -> Tensor:
        """[B, R]; with `owner_B` row b reads history `owner_B[b]`."""
        history_UR = self.of_history(self._moments(events))
        if owner_B is not None:
            history_UR = history_UR.index_select(0, owner_B)
        return history_UR * self.of_ad(F.layer_norm(ad_BX, ad_BX.shape[1:]))

    def _moments(self, events: EventInputs) -> Tensor:
        """[U, K * A * D]; histories without events give zeros."""
        layout = kernels.arrange(events.lengths_B)
        each_EAD = torch.cat(events.embedded, dim=1).unflatten(1, (-1, self.width))
        normed_EX = F.layer_norm(each_EAD, (self.width,)).flatten(1)
        weight_EK = torch.exp(-events.age_E[:, None] * self.log_rate_K.exp())
        sums_UKX = weighted_sums(layout.pack(weight_EK), layout.pack(normed_EX), layout)
        per_root_U = events.lengths_B.clamp(min=1).to(sums_UKX.dtype).rsqrt()
        return sums_UKX.flatten(1) * per_root_U[:, None]


def weighted_sums(weight_PK: Tensor, values_PX: Tensor, layout: Layout) -> Tensor:
    """[U, K, X]: each row's sums of its values by K sets of weights; free slots hold zeros."""
    if not layout.buckets:
        return values_PX.new_zeros(layout.num_rows, weight_PK.shape[1], values_PX.shape[1])
    blocks = zip(layout.blocks(weight_PK), layout.blocks(values_PX), strict=True)
    parts = [torch.bmm(w_bTK.transpose(1, 2), x_bTX) for w_bTK, x_bTX in blocks]
    return layout.put_rows(torch.cat(parts))
