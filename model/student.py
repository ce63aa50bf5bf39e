"""The student: a small ranker of one surface, with a distillation head beside the serving one.

It reads what a surface has at request time: ids, numbers and, where it is given them, two
sequences: the user's stored representations (LoopFM, arXiv 2605.29280) and the raw events behind
them. The serving head learns from labels, the distill head from the foundation model's soft labels
(arXiv 2502.17494); both share the trunk: DCNv2 (arXiv 2008.13535), DIN's MLP (arXiv 1706.06978)
or a tiny one.

Suffixes: B rows, F sparse features, C dense columns, A attributes of an event, L events of a row,
D embedding width, X input width, K objectives, S numbers of a stored event.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.batch import Batch
from model.config import FeatureSet, Objective, require
from model.student_sequence import Encoder, History, Padded, SequencePool

StudentArch = Literal["dcnv2", "din", "tiny"]
EPSILON = 1e-6
ADAPTER_WIDTH = 16
SEQUENCE_EMBEDDINGS = 2  # a pooled sequence weighs in the trunk as much as so many features


@dataclass(frozen=True, kw_only=True)
class StudentConfig:
    """Shape of a student.

    `sequence_dim`: width of the stored representations, 0 when it reads none; `raw`: tables of the
    raw events' attributes, empty when it reads none; `length`: events of either that are read;
    `served`: fields of precomputed vectors of `served_dim` numbers, each read by a map of its own;
    `encoder`: how representations are pooled (raw events are attended to);
    `adapter`: whether the foundation model's probabilities are recalibrated on fresh labels first.
    """

    arch: StudentArch = "dcnv2"
    embedding_dim: int = 8
    mlp_width: int = 64
    cross_layers: int = 2
    sequence_dim: int = 0
    encoder: Encoder = "mean"
    raw: tuple[str, ...] = ()
    served: tuple[str, ...] = ()
    served_dim: int = 0
    length: int = 50
    adapter: bool = False
    embedding_init_sd: float = 0.05


@dataclass(frozen=True, slots=True)
class StudentOutput:
    """Logits of both heads."""

    serve_BK: Tensor
    distill_BK: Tensor


class Student(nn.Module):
    """Embeddings and pooled sequences -> trunk -> serving and distillation heads.

    `features` are those of `FeatureSet.for_students()`, with match counts where the student reads
    them; further dense columns of a batch are left alone.
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
        self.config = config
        self.num_dense = len(features.dense_columns)
        self._embed(features, config)
        target = len(self.ad_places) * config.embedding_dim
        width = len(features.sparse) * config.embedding_dim + self.num_dense
        self.pool = nn.ModuleDict()
        for name, pool in self._pools(config, target).items():
            self.pool[name] = pool
            width += pool.out_width
        self.trunk = trunk_of(config, width)
        self.serve = nn.Linear(self.trunk.out_width, len(objectives))
        self.distill = nn.Linear(self.trunk.out_width, len(objectives))
        self.adapter = Adapter(len(objectives)) if config.adapter else None

    def _embed(self, features: FeatureSet, config: StudentConfig) -> None:
        """One table for all features; events share the part of a feature of their own table."""
        buckets = {t.name: t.buckets for t in features.tables}
        sizes = [buckets[f.table] for f in features.sparse]
        own = {f.table: i for i, f in reversed(list(enumerate(features.sparse)))}
        for name in dict.fromkeys(n for n in config.raw if n not in own):
            own[name] = len(sizes)
            sizes.append(buckets[name])
        begins = torch.tensor([0, *sizes]).cumsum(0)
        self.begin_F: Tensor
        self.begin_A: Tensor
        self.register_buffer("begin_F", begins[: len(features.sparse)], persistent=False)
        places = [own[name] for name in config.raw]
        self.register_buffer("begin_A", begins[places], persistent=False)
        of_ad = [i for i, f in enumerate(features.sparse) if f.scope == "ad"]
        self.ad_places: Tensor
        self.register_buffer("ad_places", torch.tensor(of_ad, dtype=torch.long), persistent=False)
        self.embedding = nn.Embedding(int(begins[-1]), config.embedding_dim)
        nn.init.normal_(self.embedding.weight, std=config.embedding_init_sd)

    @staticmethod
    def _pools(config: StudentConfig, target: int) -> dict[str, SequencePool]:
        """Raw events are always attended to: a control that is read less well would flatter."""
        kinds: dict[str, tuple[Encoder, int]] = {
            "loop": (config.encoder, config.sequence_dim),
            "raw": ("din", len(config.raw) * config.embedding_dim),
            **dict.fromkeys(config.served, ("mean", config.served_dim)),
        }
        out = SEQUENCE_EMBEDDINGS * config.embedding_dim
        return {
            name: SequencePool(encoder, width, target, config.length, out)
            for name, (encoder, width) in kinds.items()
            if width
        }

    def forward(
        self,
        batch: Batch,
        loop: History | None = None,
        raw: History | None = None,
        served: Mapping[str, History] | None = None,
        *,
        distill_gradient: float = 1.0,
    ) -> StudentOutput:
        """Logits of a batch.

        `loop`: the user's visible representations, `raw`: the visible events as ids in their
        tables, `served`: by field the precomputed vector of each row. `distill_gradient` (beta)
        scales what the distill head sends into the trunk.
        """
        pasts = {} if loop is None else {"loop": loop.pooled(self.config.encoder)}
        if raw is not None:
            pasts["raw"] = raw.padded()
        pasts |= {name: vectors.padded() for name, vectors in (served or {}).items()}
        return self.read(batch.ids_BF, batch.dense_BC, pasts, distill_gradient=distill_gradient)

    def read(
        self,
        ids_BF: Tensor,
        dense_BC: Tensor,
        pasts: dict[str, Padded],
        *,
        distill_gradient: float = 1.0,
    ) -> StudentOutput:
        """As `forward`, from plain tensors: what serving has, and what is exported."""
        if set(pasts) != set(self.pool):
            raise ValueError(
                f"this student reads the sequences {sorted(self.pool)} (sequence_dim "
                f"{self.config.sequence_dim}, raw {list(self.config.raw)}), got {sorted(pasts)}; "
                "make them agree"
            )
        embedded_BFD = self.embedding(ids_BF + self.begin_F)
        inputs = [embedded_BFD.flatten(1), dense_BC[:, : self.num_dense]]
        target_BX = embedded_BFD.index_select(1, self.ad_places).flatten(1)
        for name, pool in self.pool.items():
            events_BLS, mask_BL = pasts[name]
            if name == "raw":
                events_BLS = self.embedding(events_BLS + self.begin_A).flatten(2)
            inputs.append(pool(events_BLS, mask_BL, target_BX))
        trunk_BX = self.trunk(torch.cat(inputs, dim=1))
        soft_BX = trunk_BX
        if distill_gradient != 1.0:
            soft_BX = trunk_BX.detach() + distill_gradient * (trunk_BX - trunk_BX.detach())
        return StudentOutput(self.serve(trunk_BX), self.distill(soft_BX))


class CrossTrunk(nn.Module):
    """DCNv2: cross layers beside an MLP; without an MLP where its width is 0."""

    def __init__(self, width: int, layers: int, mlp_width: int) -> None:
        super().__init__()
        self.cross = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.mlp = mlp_of(width, mlp_width) if mlp_width else None
        self.out_width = width + mlp_width

    def forward(self, x_BX: Tensor) -> Tensor:
        """[B, out_width]."""
        crossed_BX = x_BX
        for layer in self.cross:
            crossed_BX = torch.addcmul(crossed_BX, x_BX, layer(crossed_BX))
        return crossed_BX if self.mlp is None else torch.cat([crossed_BX, self.mlp(x_BX)], dim=1)


class MlpTrunk(nn.Module):
    """DIN's own trunk: what attention pooled meets the ad in an MLP alone."""

    def __init__(self, width: int, mlp_width: int) -> None:
        super().__init__()
        self.mlp = mlp_of(width, mlp_width)
        self.out_width = mlp_width

    def forward(self, x_BX: Tensor) -> Tensor:
        """[B, out_width]."""
        hidden_BX: Tensor = self.mlp(x_BX)
        return hidden_BX


def trunk_of(config: StudentConfig, width: int) -> CrossTrunk | MlpTrunk:
    """The trunk of an arch; the tiny one is a single cross layer."""
    if config.arch == "din":
        return MlpTrunk(width, config.mlp_width)
    if config.arch == "tiny":
        return CrossTrunk(width, 1, 0)
    return CrossTrunk(width, config.cross_layers, config.mlp_width)


def mlp_of(width: int, hidden: int) -> nn.Sequential:
    """Two layers of ReLU."""
    return nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())


class Adapter(nn.Module):
    """Soft labels brought up to date with fresh labels (arXiv 2502.17494, student adapter)."""

    def __init__(self, num_objectives: int) -> None:
        super().__init__()
        last = nn.Linear(ADAPTER_WIDTH, num_objectives)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        self.net = nn.Sequential(nn.Linear(num_objectives, ADAPTER_WIDTH), nn.ReLU(), last)

    def forward(self, soft_BK: Tensor) -> Tensor:
        """Logits [B, K]: the foundation model's, corrected; at first they are its own."""
        logit_BK = torch.logit(soft_BK, eps=EPSILON)
        corrected_BK: Tensor = logit_BK + self.net(logit_BK)
        return corrected_BK


def student_loss(
    output: StudentOutput,
    batch: Batch,
    soft_BK: Tensor | None = None,
    *,
    gamma: float = 0.0,
    alpha: float = 1.0,
    adapter: Adapter | None = None,
) -> Tensor:
    """BCE(serve, y) + gamma BCE(distill, clip(alpha p_fm)), weighted means over mature labels.

    Soft labels need no maturity: the distillation term takes every row (arXiv 2502.17494). With an
    adapter, its output is a second target; labels train it, and no gradient flows back to it.
    """
    loss = label_term(output.serve_BK, batch)
    if soft_BK is None:
        return loss
    targets = [(alpha * soft_BK).clamp(EPSILON, 1.0 - EPSILON)]
    if adapter is not None:
        fresh_BK = adapter(soft_BK)
        loss = loss + label_term(fresh_BK, batch)
        targets.append(torch.sigmoid(fresh_BK.detach()))
    for target_BK in targets:
        loss = loss + gamma / len(targets) * _soft_term(output.distill_BK, target_BK, batch)
    return loss


def label_term(logits_BK: Tensor, batch: Batch) -> Tensor:
    """BCE against mature labels: weighted means per objective, summed."""
    weight_BK = batch.weight_BK * batch.mask_BK
    loss_BK = F.binary_cross_entropy_with_logits(logits_BK, batch.labels_BK, reduction="none")
    return ((loss_BK * weight_BK).sum(0) / weight_BK.sum(0).clamp_min(1.0)).sum()


def _soft_term(logits_BK: Tensor, target_BK: Tensor, batch: Batch) -> Tensor:
    loss_BK = F.binary_cross_entropy_with_logits(logits_BK, target_BK, reduction="none")
    return ((loss_BK * batch.weight_BK).sum(0) / batch.weight_BK.sum(0)).sum()
