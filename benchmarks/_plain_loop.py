"""The training loop that one would write by hand: plain torch, sparse gradients of plain tables.

It does what the engine does to a batch: warm-up, row-wise Adagrad, clipping, AdamW, averages.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.average import WeightAverage
from model.batch import Batch
from model.embedding import PlainTables
from model.foundation import FoundationModel, ModelOutput
from model.parallel import TABLE_STRIDE
from pipeline.run.config import TrainConfig

EPS = 1e-8


class SparseTables(nn.Module):
    """Plain tables whose gradients have the rows of the batch alone."""

    def __init__(self, plain: PlainTables) -> None:
        super().__init__()
        self.weights = plain.weights

    def forward(self, ids: dict[str, Tensor]) -> dict[str, Tensor]:
        """Embeddings of each table's ids."""
        found = ids.items()
        return {name: F.embedding(i, self.weights[name], sparse=True) for name, i in found}


class PlainLoop:
    """A model and its hand-written step; `sgd` takes plain SGD for both parts."""

    def __init__(self, model: FoundationModel, train: TrainConfig, *, sgd: bool = False) -> None:
        self.model, self.train, self.sgd, self.steps = model.train(), train, sgd, 0
        tables = SparseTables(cast(PlainTables, model.sparse.tables))
        model.sparse.tables = tables
        self.tables = dict(tables.weights.items())
        self.sums = {n: torch.zeros(len(w)) for n, w in self.tables.items()}
        self.dense = list(model.dense.parameters())
        self.optimizer: torch.optim.Optimizer = (
            torch.optim.SGD(self.dense, lr=train.dense_lr)
            if sgd
            else torch.optim.AdamW(
                self.dense, lr=train.dense_lr, weight_decay=train.weight_decay, fused=True
            )
        )
        self.dense_average = WeightAverage(dict(model.dense.named_parameters()), train.ema_decay)
        self.table_average = WeightAverage(dict(self.tables), train.ema_decay)

    def forward(self, batch: Batch) -> ModelOutput:
        """The model's output of a training batch."""
        output: ModelOutput = self.model(batch)
        return output

    def step(self, loss: Tensor) -> None:
        """Backward and both optimizers."""
        share = min(1.0, (self.steps + 1) / max(self.train.warmup_steps, 1))
        self.optimizer.param_groups[0]["lr"] = self.train.dense_lr * share
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            for name, weight in self.tables.items():
                self._update(name, weight, self.train.sparse_lr * share)
        if self.train.clip_norm:
            nn.utils.clip_grad_norm_(self.dense, self.train.clip_norm)
        self.optimizer.step()
        self.steps += 1
        self.dense_average.update(self.steps)
        if self.steps % TABLE_STRIDE == 1:
            self.table_average.update(self.steps)

    def _update(self, name: str, weight: Tensor, rate: float) -> None:
        if weight.grad is None:
            return
        grad = weight.grad.coalesce()
        rows, values = grad.indices()[0], grad.values()
        weight.grad = None
        if not self.sgd:
            self.sums[name].index_add_(0, rows, values.square().mean(1))
            values = values / (self.sums[name][rows].sqrt() + EPS)[:, None]
        weight.index_add_(0, rows, values, alpha=-rate)
