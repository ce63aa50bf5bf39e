"""DCNv2 (arXiv 2008.13535), parallel form: a cross network beside a deep one.

    x_0     = [context tokens, flat | mean of each tower]
    x_{l+1} = x_0 * (W_l x_l + b_l) + x_l            full W_l, section 3.2
    h_{l+1} = SiLU(V_l h_l + c_l),  h_0 = x_0
    read    = [x_L | h_L]

Suffixes: B rows, N context tokens, D model width, W tower width, X width of x_0, M of the MLP.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import torch
from torch import Tensor, nn

from model.baselines.mean import Mean
from model.baselines.widths import flat_width
from model.config import FeatureSet, ModelConfig
from model.kunlun import Context, KunlunOutput, chosen
from model.sequence import Sequence


def deep_network(num_inputs: int, config: ModelConfig) -> nn.ModuleList:
    """`config.layers` hidden layers of `config.mlp_width` units."""
    widths = [num_inputs] + [config.mlp_width] * config.layers
    return nn.ModuleList(
        nn.Sequential(nn.Linear(before, after), nn.SiLU()) for before, after in pairwise(widths)
    )


class DCNv2(nn.Module):
    """Cross and deep networks on one flat vector; its X is one wide token."""

    def __init__(self, features: FeatureSet, config: ModelConfig) -> None:
        super().__init__()
        width = flat_width(features, config)
        self.cross = nn.ModuleList(nn.Linear(width, width) for _ in range(config.layers))
        self.deep = deep_network(width, config)
        self.represented = config.representation_layers

    def forward(
        self, x_BND: Tensor, towers: Mapping[str, Sequence | Mean], context: Context
    ) -> KunlunOutput:
        """Run both networks."""
        x_BX = torch.cat([x_BND.flatten(1), *(tower.mean() for tower in towers.values())], dim=1)
        crossed = [x_BX]
        for layer in self.cross:
            crossed.append(x_BX * layer(crossed[-1]) + crossed[-1])
        deep_BM = x_BX
        for layer in self.deep:
            deep_BM = layer(deep_BM)
        read_B1X = torch.cat([crossed[-1], deep_BM], dim=1)[:, None]
        return KunlunOutput(read_B1X, read_B1X[:, :0], chosen(crossed, self.represented)[:, None])
