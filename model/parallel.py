"""The training engine: TorchRec for the tables, DeepSpeed for the dense part, one process group.

DeepSpeed broadcasts and flattens every parameter that it is given, while a TorchRec table holds
other rows on every rank and updates inside backward: the whole model is never given to DeepSpeed.
Forward is tables -> dense engine -> loss; `backward` drives both; `step` steps the dense part, the
tables have then stepped already. One learning-rate schedule drives both optimizers.

Every rank has rows of its own. The loss is that of all ranks' rows as one batch: a rank's share of
it is its rows' part of the joint sums. Both libraries average gradients over the ranks, so a share
counts as many times as there are ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torchrec import KeyedJaggedTensor, KeyedTensor
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

from model.average import WeightAverage
from model.batch import Batch
from model.config import ConfigError
from model.dense import OPTIMIZER, WEIGHT, DensePart, start_deepspeed
from model.embedding import DenseInputs, PlainTables
from model.engine_config import EngineConfig
from model.foundation import FoundationModel, ModelOutput
from model.losses import Joint
from model.pieces import Place
from model.ranks import gathered, join_process_group
from model.recompute import give_up
from model.snapshot import set_tables
from model.tables import trained_tables

__all__ = ["Engine", "EngineConfig", "join_process_group", "start_deepspeed"]
TABLE_STRIDE = 8  # steps between updates of the tables' average
AVERAGE = "average"
T = TypeVar("T")
State = tuple[dict[str, Tensor], dict[str, Tensor]]
Places = tuple[dict[str, Place], dict[str, Place]]


class Engine:
    """A foundation model in training: `forward`, `backward`, `step`; state for checkpoints."""

    def __init__(self, build: Callable[[], FoundationModel], config: EngineConfig) -> None:
        """`build` makes a plain model; it is called once now and once per export."""
        join_process_group()
        self.ranks, self.rank = dist.get_world_size(), dist.get_rank()
        if self.ranks != config.ranks:
            raise ConfigError(
                f"train.ranks must be the {self.ranks} processes that train, got {config.ranks}; "
                "start the stage by python -m pipeline, which launches as many"
            )
        self.config, self.steps, self._build = config, 0, build
        model = self._made()
        kind = torch.optim.SGD if config.optimizer == "sgd" else RowWiseAdagrad
        plain = cast(PlainTables, model.sparse.tables)
        self.tables = trained_tables(plain, kind, config.sparse_lr, config.layout.sharding)
        model.sparse.tables = self.tables
        self.sparse, self.dense = model.sparse, model.dense
        self.recomputed = give_up(model.dense, config.keep)
        self.dense_part = DensePart(model.dense, config)
        self._engine = self.dense_part.engine
        self._average_dense = WeightAverage(self.dense_part.held(), config.ema_decay)
        self._average_tables = WeightAverage(self.tables.weights(), config.ema_decay)

    def forward(self, batch: Batch) -> ModelOutput:
        """Output of a training batch; its learning rates are those of the step to come."""
        self._set_learning_rates()
        counts_K1 = self._count(batch)
        output = self.dense_part.forward(refuse_keyed(self.sparse(batch)))
        if counts_K1 is None:
            return output
        weight_K, num_rows = counts_K1[:-1], float(counts_K1[-1])
        return replace(output, joint=Joint(num_rows, weight_K))

    def backward(self, loss: Tensor) -> None:
        """Gradients of the dense part; the tables are updated on the way."""
        self._engine.backward(loss if self.ranks == 1 else loss * self.ranks)

    def step(self) -> None:
        """Step the dense part and the averages."""
        self.dense_part.step()
        self.tables.step()
        self.steps += 1
        self._average_dense.update(self.steps)
        if self.steps % TABLE_STRIDE == 1:
            self._average_tables.update(self.steps)

    def export(self, *, averaged: bool = True) -> FoundationModel:
        """A plain model with the averaged (or last) weights, in eval mode; all ranks take part."""
        model, part = self._made(), self.dense_part
        dense = self._average_dense.at(self.steps) if averaged else part.held()
        tables = self._average_tables.at(self.steps) if averaged else self.tables.weights()
        whole = gathered(part.flat(dense), part.places)
        model.dense.load_state_dict({n: whole[n].view(part.shapes[n]) for n in part.shapes})
        set_tables(model, gathered(tables, self.tables.places))
        return model.eval().requires_grad_(False)

    def moments(self) -> dict[str, Tensor]:
        """The Adagrad sums of all rows by table, on every rank; all ranks take part."""
        places = self.tables.moment_places()
        if self.config.optimizer == "sgd":
            return {}
        return gathered(self.tables.moments(), places)

    def set_tables(self, weights: Mapping[str, Tensor], moments: Mapping[str, Tensor]) -> None:
        """Copy whole weights and Adagrad sums into the tables named; others stay as they are."""
        own, places = self.tables.weights(), self.tables.places
        own_moments, rows = self.tables.moments(), self.tables.moment_places()
        with torch.no_grad():
            for name in weights.keys() & own.keys():
                own[name].copy_(places[name].within(weights[name]))
            for name in moments.keys() & own_moments.keys():
                own_moments[name].copy_(rows[name].within(moments[name].view(-1)))

    def set_dense(self, weights: Mapping[str, Tensor]) -> None:
        """Copy whole dense weights into the parameters named; others stay as they are."""
        self.dense_part.set_weights(weights)

    def tensors(self) -> State:
        """All state of this rank as (dense, sparse) named tensors: weights, optimizers, averages.

        They are views, except for the steps.
        """
        part, averages = self.dense_part, self._average_dense.values
        dense = _named(WEIGHT, part.flat(part.held())) | part.state()
        dense |= _named(AVERAGE, part.flat(averages))
        sparse = _named(WEIGHT, self.tables.weights())
        sparse |= _named(OPTIMIZER, self.tables.moments())
        sparse |= _named(AVERAGE, self._average_tables.values)
        counts = (self.steps, self._average_dense.steps, self._average_tables.steps)
        return dense | {"steps": torch.tensor(counts)}, sparse

    def places(self) -> Places:
        """Where the tensors of `tensors` lie in the whole ones, by the same names."""
        part, tables = self.dense_part, self.tables
        dense = _named(WEIGHT, part.places) | part.state_places() | _named(AVERAGE, part.places)
        sparse = _named(WEIGHT, tables.places) | _named(OPTIMIZER, tables.moment_places())
        sparse |= _named(AVERAGE, tables.places)
        steps = Place.all_of(torch.zeros(3), mine=self.rank == 0)
        return dense | {"steps": steps}, sparse

    def expect(self, keys: set[str]) -> None:
        """Make room for the dense optimizer state that `keys` name."""
        self.dense_part.expect(keys)

    def load_tensors(self, dense: dict[str, Tensor], sparse: dict[str, Tensor]) -> None:
        """Restore what `tensors` gave, exactly."""
        self.expect(set(dense))
        with torch.no_grad():
            for own, given in zip(self.tensors(), (dense, sparse), strict=True):
                for name in own.keys() & given.keys() - {"steps"}:
                    own[name].copy_(given[name])
        self.dense_part.follow()
        self.steps, self._average_dense.steps, self._average_tables.steps = dense["steps"].tolist()

    def restart_averages(self) -> None:
        """Begin both averages at the current weights."""
        self._average_dense.restart()
        self._average_tables.restart()

    def _made(self) -> FoundationModel:
        """A plain model; several ranks then draw their dropout each for itself."""
        model = self._build()
        if self.ranks > 1:
            torch.manual_seed(self.steps * self.ranks + self.rank)
        return model

    def _count(self, batch: Batch) -> Tensor | None:
        """Weight of all ranks' labels by objective, and their rows; None with one rank."""
        if self.ranks == 1:
            return None
        weight_K = (batch.weight_BK * batch.mask_BK).sum(0)
        counts_K1 = torch.cat([weight_K, weight_K.new_tensor([batch.num_rows])])
        dist.all_reduce(counts_K1)
        return counts_K1

    def _set_learning_rates(self) -> None:
        share = min(1.0, (self.steps + 1) / max(self.config.warmup_steps, 1))
        for group in self.dense_part.optimizer.param_groups:
            group["lr"] = self.config.dense_lr * share
        self.tables.set_learning_rate(self.config.sparse_lr * share)


def refuse_keyed(inputs: DenseInputs) -> DenseInputs:
    """The inputs of the dense part; a keyed tensor among them is refused.

    The order of its keys changes with the sharding, and a dense module reads by position.
    """
    for field in fields(inputs):
        if isinstance(getattr(inputs, field.name), (KeyedTensor, KeyedJaggedTensor)):
            raise ConfigError(
                f"{field.name} reaches the dense part as a keyed tensor, whose order of keys "
                "changes with the sharding; take each feature by its key"
            )
    return inputs


def _named(prefix: str, values: Mapping[str, T]) -> dict[str, T]:
    return {f"{prefix}.{name}": value for name, value in values.items()}
