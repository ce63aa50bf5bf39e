"""Wukong (arXiv 2403.02545): a stack of its layers over all tokens, sequences pooled beforehand.

    T_0     = [X | H],  H_e = the tower of event type e as `tokens` tokens
    T_{l+1} = LN(concat(FMB(T_l), LCB(T_l)) + T_l)

`wukong` pools a tower by its mean, `wukong_pma` by learnable queries (PMA, arXiv 1810.00825). The
layer is the one that Kunlun's global interaction consists of (model/interaction.py). Here no
token is dropped between layers, so H stays in the stack.

Suffixes: B rows, N context tokens, Q pooled tokens, D model width, W tower width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from model.baselines.widths import num_context_tokens, num_pooled_tokens
from model.config import EventType, FeatureSet, ModelConfig
from model.interaction import WukongLayer
from model.kunlun import Context, KunlunOutput, chosen, joined
from model.pooling import PlainPooling
from model.sequence import Sequence


class MeanPooling(nn.Module):
    """The mean of a tower's events, projected to `event.tokens` tokens; no events give zeros."""

    def __init__(self, event: EventType, width: int) -> None:
        super().__init__()
        self.width = width
        self.out = nn.Linear(event.width, event.tokens * width, bias=False)

    def forward(self, sequence: Sequence) -> Tensor:
        """[B, Q, D]."""
        mean_BW = sequence.mean()
        return self.out(mean_BW).view(mean_BW.shape[0], -1, self.width)


class Wukong(nn.Module):
    """The stack; its X are all tokens."""

    def __init__(self, features: FeatureSet, config: ModelConfig) -> None:
        super().__init__()
        total = num_context_tokens(features) + num_pooled_tokens(features)
        pooling = PlainPooling if config.arch == "wukong_pma" else MeanPooling
        self.pool = nn.ModuleDict({e.name: pooling(e, config.width) for e in features.events})
        self.layers = nn.ModuleList(WukongLayer(total, total, config) for _ in range(config.layers))
        self.represented = config.representation_layers

    def forward(self, x_BND: Tensor, towers: dict[str, Sequence], context: Context) -> KunlunOutput:
        """Run all layers; H is part of X."""
        h = {name: pool(towers[name]) for name, pool in self.pool.items()}
        states = [torch.cat([x_BND, joined(h, x_BND)], dim=1)]
        for layer in self.layers:
            states.append(layer(states[-1]))
        return KunlunOutput(states[-1], x_BND[:, :0], chosen(states, self.represented))
