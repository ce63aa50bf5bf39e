"""DIN (arXiv 1706.06978): the ad attends to each event, the weighted sum goes into an MLP.

    v_e   = Q_e [the ad's tokens, flat]                                   in the tower's width
    a_j   = w . SiLU(A s_j + B (s_j * v) + C v + b) + c                   the activation unit
    u_e   = sum_j a_j s_j                                                 no softmax, section 4.3
    h_0   = [context tokens, flat | u_e of each tower],  h_{l+1} = SiLU(V_l h_l + c_l)

The paper's unit also reads s_j - v, which A and C make already. SiLU stands for Dice, whose
statistics would make a row's output depend on its batch.

Suffixes: B rows, N context tokens, P slots, D model width, W tower width, U hidden units of the
activation unit, M of the MLP.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import kernels
from model.baselines.dcnv2 import deep_network
from model.baselines.jagged import spread_rows
from model.baselines.widths import flat_width, num_ad_tokens
from model.config import EventType, FeatureSet, ModelConfig, require
from model.kunlun import Context, KunlunOutput, chosen
from model.sequence import Sequence


class TargetAttention(nn.Module):
    """The weighted sum of a tower's events, weights from ad and event; no events give zeros."""

    def __init__(self, event: EventType, num_ad_tokens: int, config: ModelConfig) -> None:
        super().__init__()
        hidden = max(1, config.mlp_width // 2)
        self.query = nn.Linear(num_ad_tokens * config.width, event.width)
        self.own = nn.Linear(2 * event.width, hidden)
        self.ad = nn.Linear(event.width, hidden, bias=False)
        self.out = nn.Linear(hidden, 1)

    def forward(self, sequence: Sequence, ad_BX: Tensor) -> Tensor:
        """[B, W]."""
        state_PW, layout = sequence.state_PW, sequence.layout
        query_BW = self.query(ad_BX)
        met_PW = state_PW * spread_rows(query_BW, layout)
        own_PU = self.own(torch.cat([state_PW, met_PW], dim=1))
        hidden_PU = F.silu(own_PU + spread_rows(self.ad(query_BW), layout))
        return kernels.jagged_pool(state_PW * self.out(hidden_PU), layout, mode="sum")


class DIN(nn.Module):
    """Target attention over every tower, then an MLP; its X is one wide token."""

    def __init__(self, features: FeatureSet, config: ModelConfig) -> None:
        super().__init__()
        num_ad = num_ad_tokens(features)
        require(num_ad > 0, "features.sparse", "with features of the ad", num_ad, "declare ad_id")
        self.attend = nn.ModuleDict(
            {e.name: TargetAttention(e, num_ad, config) for e in features.events}
        )
        self.deep = deep_network(flat_width(features, config), config)
        self.represented = config.representation_layers

    def forward(self, x_BND: Tensor, towers: dict[str, Sequence], context: Context) -> KunlunOutput:
        """Read the towers for the ad, then run the MLP."""
        read = [attend(towers[name], context.ad_BX) for name, attend in self.attend.items()]
        states = [torch.cat([x_BND.flatten(1), *read], dim=1)]
        for layer in self.deep:
            states.append(layer(states[-1]))
        last_B1M = states[-1][:, None]
        return KunlunOutput(last_B1M, last_B1M[:, :0], chosen(states, self.represented)[:, None])
