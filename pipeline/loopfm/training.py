"""One pass of a student over its surface's rows, in time order; the average of its weights stays.

The published weights are an exponential moving average over steps: the last iterate's
calibration swings from step to step, the average's does not. What bias the short pass leaves is
then taken out by one intercept per objective, fitted on the trained rows. Suffixes: R rows, B
rows of a batch, K objectives, d code width.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

import torch
from torch import Tensor

from model.batch import Batch
from model.config import FeatureSet, Objective
from model.student import Student, StudentConfig, student_loss
from pipeline.run.config import TransferConfig

EMA_DECAY: Final = 0.98
EPSILON: Final = 1e-4
NEWTON_STEPS: Final = 12


@dataclass(frozen=True, kw_only=True)
class Arm:
    """What a student learns from besides labels."""

    name: str
    distill: bool
    sequence: bool


ARMS: Final = (
    Arm(name="none", distill=False, sequence=False),
    Arm(name="kd", distill=True, sequence=False),
    Arm(name="loopfm", distill=False, sequence=True),
    Arm(name="kd_loopfm", distill=True, sequence=True),
)


@dataclass(frozen=True, kw_only=True)
class StudentRows:
    """Rows of one surface in time order, gathered once.

    `soft_RK`: the FM's probabilities; `sequence_Rd`, `count_R`: mean and number of the user's
    visible representations, the number as the student is to read it.
    """

    batch: Batch
    soft_RK: Tensor
    sequence_Rd: Tensor
    count_R: Tensor

    def __len__(self) -> int:
        return self.batch.num_rows

    def part(self, rows: slice | Tensor) -> StudentRows:
        """The rows of a slice (a view) or an index (a copy)."""
        return StudentRows(
            batch=rows_of(self.batch, rows),
            soft_RK=self.soft_RK[rows],
            sequence_Rd=self.sequence_Rd[rows],
            count_R=self.count_R[rows],
        )


def rows_of(batch: Batch, rows: slice | Tensor) -> Batch:
    """The chosen rows of a batch without events."""
    if batch.events:
        raise ValueError("rows_of needs a batch without events; load with events=False")
    tensors = {f.name: getattr(batch, f.name) for f in fields(Batch) if f.name != "events"}
    return Batch(events={}, **{name: tensor[rows] for name, tensor in tensors.items()})


def train_student(
    rows: StudentRows,
    arm: Arm,
    *,
    features: FeatureSet,
    objectives: tuple[Objective, ...],
    config: TransferConfig,
    seed: int,
) -> Student:
    """Train one student in one pass and return it with its averaged weights, in eval mode.

    All arms see the same rows in the same order from the same seed; the serving head starts at
    the log odds of the rows' base rates.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        student = Student(features, objectives, student_config(arm, config, rows))
    _start_at_base_rates(student, rows)
    weights: list[Tensor] = [p for p in student.parameters() if p.requires_grad]
    averages = [w.detach().clone() for w in weights]
    optimizer = torch.optim.Adam(weights, lr=config.lr, foreach=True)
    for step, begin in enumerate(range(0, len(rows), config.batch_size)):
        part = rows.part(slice(begin, begin + config.batch_size))
        optimizer.zero_grad()
        torch.autograd.backward(arm_loss(student, part, arm, config))
        optimizer.step()
        # A short memory at first: the start must not weigh on a short run.
        keep = min(EMA_DECAY, (1 + step) / (10 + step))
        with torch.no_grad():
            torch._foreach_lerp_(averages, weights, 1.0 - keep)
    with torch.no_grad():
        torch._foreach_copy_(weights, averages)
    student.eval()
    _fit_intercepts(student, rows, arm)
    return student


def arm_loss(student: Student, part: StudentRows, arm: Arm, config: TransferConfig) -> Tensor:
    """The arm's loss on a batch: labels, and soft labels where the arm distills."""
    beta = config.kd_beta if arm.distill else 1.0
    output = student(part.batch, *_sequence(part, arm), distill_gradient=beta)
    soft_BK = part.soft_RK if arm.distill else None
    return student_loss(output, part.batch, soft_BK, gamma=config.kd_gamma, alpha=config.kd_alpha)


def predict_rows(student: Student, rows: StudentRows, arm: Arm) -> Tensor:
    """Serving probabilities (R, K)."""
    with torch.inference_mode():
        return torch.sigmoid(student(rows.batch, *_sequence(rows, arm)).serve_BK)


def student_config(arm: Arm, config: TransferConfig, rows: StudentRows) -> StudentConfig:
    """The shape of an arm's student."""
    return StudentConfig(
        embedding_dim=config.embedding_dim,
        mlp_width=config.mlp_width,
        cross_layers=config.cross_layers,
        sequence_dim=rows.sequence_Rd.shape[1] if arm.sequence else 0,
    )


def _sequence(rows: StudentRows, arm: Arm) -> tuple[Tensor | None, Tensor | None]:
    return (rows.sequence_Rd, rows.count_R) if arm.sequence else (None, None)


def _fit_intercepts(student: Student, rows: StudentRows, arm: Arm) -> None:
    """Shift the serving biases so that predictions sum to labels over the rows."""
    weight_RK = rows.batch.weight_BK * rows.batch.mask_BK
    positives_K = (weight_RK * rows.batch.labels_BK).sum(0)
    # Where all labels are equal no intercept fits: the shift stays 0.
    both_K = (positives_K > 0) & (positives_K < weight_RK.sum(0))
    with torch.no_grad():
        logits_RK = student(rows.batch, *_sequence(rows, arm)).serve_BK
        shift_K = torch.zeros_like(positives_K)
        for _ in range(NEWTON_STEPS):
            p_RK = torch.sigmoid(logits_RK + shift_K)
            gap_K = positives_K - (weight_RK * p_RK).sum(0)
            slope_K = (weight_RK * p_RK * (1 - p_RK)).sum(0).clamp_min(EPSILON)
            shift_K += (gap_K / slope_K).clamp(-1.0, 1.0) * both_K
        student.serve.bias.add_(shift_K)


def _start_at_base_rates(student: Student, rows: StudentRows) -> None:
    weight_RK = rows.batch.weight_BK * rows.batch.mask_BK
    rate_K = (weight_RK * rows.batch.labels_BK).sum(0) / weight_RK.sum(0).clamp_min(1.0)
    with torch.no_grad():
        student.serve.bias.copy_(torch.logit(rate_K.clamp(EPSILON, 1 - EPSILON)))
        student.distill.bias.copy_(torch.logit(rows.soft_RK.mean(0).clamp(EPSILON, 1 - EPSILON)))
