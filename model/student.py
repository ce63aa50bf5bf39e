"""The student: a small DCNv2-like ranker of one surface (arXiv 2008.13535), with a distill head.

It reads what a surface has at request time: ids, numbers and, with LoopFM, the mean of the user's
stored representations and how many there were. The serving head learns from labels, the distill
head from the foundation model's soft labels; both share the trunk.

Suffixes: B rows, F sparse features, C dense columns, D embedding width, X input width,
K objectives, d representation width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.batch import Batch
from model.config import FeatureSet, Objective, require

EPSILON = 1e-6


@dataclass(frozen=True, kw_only=True)
class StudentConfig:
    """Shape of a student; `sequence_dim` 0 means that it reads no representations."""

    embedding_dim: int = 8
    mlp_width: int = 64
    cross_layers: int = 2
    sequence_dim: int = 0
    embedding_init_sd: float = 0.05


@dataclass(frozen=True, slots=True)
class StudentOutput:
    """Logits of both heads."""

    serve_BK: Tensor
    distill_BK: Tensor


class Student(nn.Module):
    """Embeddings -> cross layers beside an MLP -> serving and distillation heads.

    `features` are those of `FeatureSet.for_students()`; events are not read.
    """

    def __init__(
        self, features: FeatureSet, objectives: tuple[Objective, ...], config: StudentConfig
    ) -> None:
        super().__init__()
        require(
            not any(f.central_only for f in features.sparse),
            "student features",
            "without central-only ones",
            [f.name for f in features.sparse if f.central_only],
            "pass features.for_students()",
        )
        buckets = {t.name: t.buckets for t in features.tables}
        sizes = [buckets[f.table] for f in features.sparse]
        begins = torch.tensor([0, *sizes]).cumsum(0)
        self.begin_F: Tensor
        self.register_buffer("begin_F", begins[:-1], persistent=False)
        self.embedding = nn.Embedding(int(begins[-1]), config.embedding_dim)
        nn.init.normal_(self.embedding.weight, std=config.embedding_init_sd)
        self.sequence_dim = config.sequence_dim
        width = len(sizes) * config.embedding_dim + len(features.dense_columns)
        width += config.sequence_dim + 1 if config.sequence_dim else 0
        self.cross = nn.ModuleList(nn.Linear(width, width) for _ in range(config.cross_layers))
        self.mlp = nn.Sequential(
            nn.Linear(width, config.mlp_width),
            nn.ReLU(),
            nn.Linear(config.mlp_width, config.mlp_width),
            nn.ReLU(),
        )
        self.serve = nn.Linear(width + config.mlp_width, len(objectives))
        self.distill = nn.Linear(width + config.mlp_width, len(objectives))

    def forward(
        self,
        batch: Batch,
        sequence_Bd: Tensor | None = None,
        count_B: Tensor | None = None,
        *,
        distill_gradient: float = 1.0,
    ) -> StudentOutput:
        """Logits of a batch.

        `sequence_Bd`: mean of the user's visible representations, zeros where `count_B` is 0.
        `distill_gradient` (beta) scales what the distill head sends into the trunk.
        """
        x_BX = torch.cat(self._inputs(batch, sequence_Bd, count_B), dim=1)
        crossed_BX = x_BX
        for layer in self.cross:
            crossed_BX = x_BX * layer(crossed_BX) + crossed_BX
        trunk_BX = torch.cat([crossed_BX, self.mlp(x_BX)], dim=1)
        soft_BX = trunk_BX
        if distill_gradient != 1.0:
            soft_BX = trunk_BX.detach() + distill_gradient * (trunk_BX - trunk_BX.detach())
        return StudentOutput(self.serve(trunk_BX), self.distill(soft_BX))

    def _inputs(
        self, batch: Batch, sequence_Bd: Tensor | None, count_B: Tensor | None
    ) -> list[Tensor]:
        inputs = [self.embedding(batch.ids_BF + self.begin_F).flatten(1), batch.dense_BC]
        given = sequence_Bd is not None and count_B is not None
        if given != bool(self.sequence_dim):
            raise ValueError(
                f"this student has sequence_dim {self.sequence_dim}, "
                f"got {'a' if given else 'no'} sequence with its counts; make them agree"
            )
        if sequence_Bd is not None and count_B is not None:
            inputs += [sequence_Bd, torch.log1p(count_B.to(sequence_Bd.dtype))[:, None]]
        return inputs


def student_loss(
    output: StudentOutput,
    batch: Batch,
    soft_BK: Tensor | None = None,
    *,
    gamma: float = 0.0,
    alpha: float = 1.0,
) -> Tensor:
    """BCE(serve, y) + gamma BCE(distill, clip(alpha p_fm)), weighted means over mature labels.

    Soft labels need no maturity: the distillation term takes every row (arXiv 2502.17494).
    """
    weight_BK = batch.weight_BK * batch.mask_BK
    hard_BK = F.binary_cross_entropy_with_logits(output.serve_BK, batch.labels_BK, reduction="none")
    loss = ((hard_BK * weight_BK).sum(0) / weight_BK.sum(0).clamp_min(1.0)).sum()
    if soft_BK is None:
        return loss
    target_BK = (alpha * soft_BK).clamp(EPSILON, 1.0 - EPSILON)
    soft = F.binary_cross_entropy_with_logits(output.distill_BK, target_BK, reduction="none")
    return loss + gamma * ((soft * batch.weight_BK).sum(0) / batch.weight_BK.sum(0)).sum()
