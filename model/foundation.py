"""The foundation model: tables, and a dense trunk (Kunlun or a baseline), heads and a compressor.

Suffixes: B rows, F sparse features, C dense columns, N tokens, D width, K objectives, d code width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from model.baselines.dcnv2 import DCNv2
from model.baselines.din import DIN
from model.baselines.interformer import InterFormer
from model.baselines.mean import MeanEntry
from model.baselines.widths import num_products, read_width, represented_width
from model.baselines.wukong import Wukong
from model.batch import Batch, Sharing
from model.compressor import Compressor
from model.config import FeatureSet, ModelConfig, Objective, require
from model.embedding import DenseInputs, SparseArch
from model.heads import Heads
from model.kunlun import Context, Kunlun
from model.losses import Joint, label_loss
from model.precision import choose_precision
from model.products import AdProducts
from model.sequence import EventEntry


@dataclass(frozen=True, slots=True)
class ModelOutput:
    """Logits in objective order, the tanh code, and the compressor's own loss (0 in eval mode).

    `joint`: what the loss needs to know of other ranks' rows; None when there are none.
    """

    logits_BK: Tensor
    representation_Bd: Tensor
    reconstruction: Tensor
    joint: Joint | None = None


class DenseArch(nn.Module):
    """Everything but the tables: what the dense engine trains."""

    def __init__(
        self,
        features: FeatureSet,
        objectives: tuple[Objective, ...],
        num_surfaces: int,
        config: ModelConfig,
    ) -> None:
        super().__init__()
        self.ad_places = [i for i, f in enumerate(features.sparse) if f.scope == "ad"]
        self.user_places = None
        if config.gdpa_context == "user":
            self.user_places = [i for i, f in enumerate(features.sparse) if f.scope != "ad"]
        self.shares_towers = config.arch == "kunlun" and self.user_places is not None
        num_dense = len(features.dense_columns)
        self.to_width = (
            nn.Identity()
            if config.embedding_dim == config.width
            else nn.Linear(config.embedding_dim, config.width, bias=False)
        )
        self.dense_token = nn.Linear(num_dense, config.width) if num_dense else None
        entry = MeanEntry if config.arch == "dcnv2" else EventEntry
        self.entry = nn.ModuleDict({e.name: entry(e, config) for e in features.events})
        self.trunk = build_trunk(features, config)
        met = features.events if num_products(features, config) else ()
        self.products = nn.ModuleDict(
            {e.name: AdProducts(e, len(self.ad_places), config) for e in met}
        )
        self.dropout = nn.Dropout(config.dropout)
        read = read_width(features, config) + num_dense
        self.heads = Heads(read, num_surfaces, len(objectives), config)
        self.compressor = Compressor(
            represented_width(features, config), config.mlp_width, config.representation_dim
        )
        choose_precision(self, config)

    def forward(self, inputs: DenseInputs, sharing: Sharing | None = None) -> ModelOutput:
        """Logits and representation of embedded inputs.

        With `sharing` the events are one history per user. Where no tower sees the ad, a user's
        towers run once; elsewhere only the projection of the events does.
        """
        x_BND = self.to_width(inputs.embedded_BFD)
        once = sharing if self.shares_towers else None
        context = self._context(x_BND, once)
        spread_B = sharing.owner_B if sharing is not None and once is None else None
        if self.dense_token is not None:
            token_BD = self.dense_token(inputs.dense_BC)
            x_BND = torch.cat([x_BND, token_BD[:, None]], dim=1)
        towers = {name: entry(inputs.events[name], spread_B) for name, entry in self.entry.items()}
        out = self.trunk(x_BND, towers, context)
        owner_B = None if sharing is None else sharing.owner_B
        products = [
            meet(inputs.events[name], context.ad_BX, owner_B)
            for name, meet in self.products.items()
        ]
        read = [out.x_BND.flatten(1), out.h_BQD.flatten(1), *products, inputs.dense_BC]
        represented_BX = torch.cat([out.represented_BND.flatten(1), *products], dim=1)
        code_Bd, reconstruction = self.compressor(represented_BX)
        logits_BK = self.heads(self.dropout(torch.cat(read, dim=1)), inputs.surface_B)
        return ModelOutput(logits_BK, code_Bd, reconstruction)

    def _context(self, x_BND: Tensor, once: Sharing | None) -> Context:
        ad_BX = x_BND[:, self.ad_places].flatten(1)
        if self.user_places is None:
            return Context(ad_BX, None)
        if once is None:
            return Context(ad_BX, x_BND[:, self.user_places])
        return Context(ad_BX, x_BND[once.first_U][:, self.user_places], once.owner_B)


def build_trunk(features: FeatureSet, config: ModelConfig) -> nn.Module:
    """The trunk that `config.arch` names; all of them read and answer what Kunlun does."""
    kinds: dict[str, Callable[[FeatureSet, ModelConfig], nn.Module]] = {
        "kunlun": Kunlun,
        "wukong": Wukong,
        "wukong_pma": Wukong,
        "interformer": InterFormer,
        "dcnv2": DCNv2,
        "din": DIN,
    }
    return kinds[config.arch](features, config)


class FoundationModel(nn.Module):
    """Tables and dense part as one module: what is evaluated, frozen and exported."""

    def __init__(
        self,
        features: FeatureSet,
        objectives: tuple[Objective, ...],
        num_surfaces: int,
        config: ModelConfig,
    ) -> None:
        super().__init__()
        require(
            len(features.sparse) > 0, "features.sparse", "not empty", (), "declare the id features"
        )
        self.sparse = SparseArch(features, config)
        self.dense = DenseArch(features, objectives, num_surfaces, config)

    def forward(self, batch: Batch) -> ModelOutput:
        """Logits [B, K] and representation [B, d] of a batch."""
        return self.dense(self.sparse(batch))

    def candidates(self, batch: Batch, sharing: Sharing) -> ModelOutput:
        """As `forward`, of a batch whose events are one history per user.

        Rows of a user must agree in every feature that is not the ad's.
        """
        return self.dense(self.sparse(batch), sharing)


def training_loss(output: ModelOutput, batch: Batch, task_weight_K: Tensor) -> Tensor:
    """Label loss of all objectives plus the compressor's reconstruction, a scalar.

    On several ranks it is this rank's share: the shares of all ranks add up to the joint loss.
    """
    label = label_loss(output.logits_BK, batch, task_weight_K, output.joint)
    if output.joint is None:
        return label + output.reconstruction
    return label + output.reconstruction * (batch.num_rows / output.joint.num_rows)
