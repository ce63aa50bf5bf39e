"""One pass of a student over its surface's rows, in time order; the average of its weights stays.

The published weights are an exponential moving average over steps: the last iterate's
calibration swings from step to step, the average's does not. What bias the short pass leaves is
then taken out by one intercept per objective, fitted on the trained rows. Suffixes: R rows, B
rows of a batch, N stored events, K objectives.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Final

import torch
from torch import Tensor

from model.batch import Batch
from model.config import FeatureSet, Objective
from model.student import Student, StudentConfig, student_loss
from model.student_sequence import History
from pipeline.loopfm.arms import Arm
from pipeline.run.errors import ConfigError
from pipeline.run.transfer import TransferConfig

EMA_DECAY: Final = 0.98
EPSILON: Final = 1e-4
NEWTON_STEPS: Final = 12
PREDICT_BATCH: Final = 4_096
SERVED_DROP: Final = 0.1


@dataclass(frozen=True, kw_only=True)
class StudentRows:
    """Rows of one surface in time order, gathered once.

    `soft_RK`: the FM's probabilities; `loop`: the user's visible representations; `own`: the
    row's own; `raw`: the visible events themselves; `served`: by field what a store would have
    served, one vector or none.
    """

    batch: Batch
    soft_RK: Tensor
    loop: History
    own: History | None = None
    raw: History | None = None
    served: Mapping[str, History] = field(default_factory=dict)

    def __len__(self) -> int:
        return self.batch.num_rows

    def part(self, rows: slice | Tensor) -> StudentRows:
        """The rows of a slice (a view) or an index (a copy)."""
        return StudentRows(
            batch=rows_of(self.batch, rows),
            soft_RK=self.soft_RK[rows],
            loop=self.loop.part(rows),
            own=self.own.part(rows) if self.own else None,
            raw=self.raw.part(rows) if self.raw else None,
            served={name: vectors.part(rows) for name, vectors in self.served.items()},
        )

    def parts(self, size: int) -> Iterator[StudentRows]:
        """The rows in order, `size` at a time."""
        for begin in range(0, len(self), size):
            yield self.part(slice(begin, begin + size))


def rows_of(batch: Batch, rows: slice | Tensor) -> Batch:
    """The chosen rows of a batch without events."""
    if batch.events:
        raise ValueError("rows_of needs a batch without events; load with events=False")
    tensors = {f.name: getattr(batch, f.name) for f in fields(Batch) if f.name != "events"}
    return Batch(events={}, **{name: tensor[rows] for name, tensor in tensors.items()})


def read_by(arm: Arm, rows: StudentRows, seed: int) -> StudentRows:
    """The rows as an arm reads them: what `loop` points at is the arm's own."""
    if arm.served:
        rows = replace(rows, served=_served_to(arm, rows, seed))
    if arm.loop == "own":
        if rows.own is None:
            raise ValueError(f"arm {arm.name} reads each row's own representation; gather them")
        return replace(rows, loop=rows.own)
    if arm.loop == "shuffled":
        random = torch.Generator().manual_seed(seed)
        order_N = torch.randperm(len(rows.loop.stored_NS), generator=random)
        return replace(rows, loop=rows.loop.with_stored(rows.loop.stored_NS[order_N]))
    return rows


def _served_to(arm: Arm, rows: StudentRows, seed: int) -> dict[str, History]:
    """The fields that an arm reads, as they are or, for the placebo, of other rows."""
    missing = [name for name in arm.served if name not in rows.served]
    if missing:
        raise ConfigError(
            f"arm {arm.name} reads precomputed vectors, but these rows have none of {missing}; "
            "the as_served stage finds them"
        )
    random = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(rows), generator=random) if arm.shuffled_served else None
    found = {name: rows.served[name] for name in arm.served}
    return found if order is None else {name: h.part(order) for name, h in found.items()}


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
        student = Student(features, objectives, student_config(arm, config, rows, features))
    _start_at_base_rates(student, rows)
    weights: list[Tensor] = [p for p in student.parameters() if p.requires_grad]
    averages = [w.detach().clone() for w in weights]
    optimizer = torch.optim.Adam(weights, lr=config.lr, foreach=True)
    random = torch.Generator().manual_seed(seed)
    for step, part in enumerate(rows.parts(config.batch_size)):
        optimizer.zero_grad()
        torch.autograd.backward(arm_loss(student, _some_dropped(part, random), arm, config))
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


def _some_dropped(part: StudentRows, random: torch.Generator) -> StudentRows:
    """A batch in which a part of the rows lacks all served vectors, as when a store is down."""
    if not part.served:
        return part
    dropped_B = torch.rand(len(part), generator=random) < SERVED_DROP
    return replace(part, served={n: h.without(dropped_B) for n, h in part.served.items()})


def arm_loss(student: Student, part: StudentRows, arm: Arm, config: TransferConfig) -> Tensor:
    """The arm's loss on a batch: labels, and soft labels where the arm distills."""
    beta = config.kd_beta if arm.distill else 1.0
    output = student(part.batch, *sequences(part, arm), distill_gradient=beta)
    return student_loss(
        output,
        part.batch,
        part.soft_RK if arm.distill else None,
        gamma=config.kd_gamma,
        alpha=config.kd_alpha,
        adapter=student.adapter,
    )


def predict_rows(student: Student, rows: StudentRows, arm: Arm) -> Tensor:
    """Serving probabilities (R, K)."""
    return torch.sigmoid(_logits(student, rows, arm))


def student_config(
    arm: Arm, config: TransferConfig, rows: StudentRows, features: FeatureSet
) -> StudentConfig:
    """The shape of an arm's student."""
    shown = [e for e in features.events if e.source == "impressions"]
    return StudentConfig(
        arch=config.student,
        embedding_dim=config.embedding_dim,
        mlp_width=config.mlp_width,
        cross_layers=config.cross_layers,
        sequence_dim=rows.loop.stored_NS.shape[1] if arm.sequence else 0,
        encoder=config.encoder,
        raw=tuple(a.table for a in shown[0].attributes) if arm.raw else (),
        served=arm.served,
        served_dim=rows.served[arm.served[0]].stored_NS.shape[1] if arm.served else 0,
        length=rows.loop.length,
        adapter=config.kd_adapter and arm.distill,
        embedding_init_sd=config.embedding_init_sd,
    )


def sequences(
    rows: StudentRows, arm: Arm
) -> tuple[History | None, History | None, Mapping[str, History]]:
    """What the arm's student reads beside features: representations, raw events, served vectors."""
    served = rows.served if arm.served else {}
    return (rows.loop if arm.sequence else None, rows.raw if arm.raw else None, served)


def _logits(student: Student, rows: StudentRows, arm: Arm) -> Tensor:
    with torch.inference_mode():
        parts = rows.parts(PREDICT_BATCH)
        return torch.cat([student(p.batch, *sequences(p, arm)).serve_BK for p in parts])


def _fit_intercepts(student: Student, rows: StudentRows, arm: Arm) -> None:
    """Shift the serving biases so that predictions sum to labels over the rows."""
    weight_RK = rows.batch.weight_BK * rows.batch.mask_BK
    positives_K = (weight_RK * rows.batch.labels_BK).sum(0)
    # Where all labels are equal no intercept fits: the shift stays 0.
    both_K = (positives_K > 0) & (positives_K < weight_RK.sum(0))
    with torch.no_grad():
        logits_RK = _logits(student, rows, arm)
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
