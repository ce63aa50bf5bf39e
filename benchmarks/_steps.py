"""Training steps on synthetic batches: what a step takes at a shape and with given histories.

The model, its engine and the loss are those of `pretrain`; ids are random, since no lookup, product
or gradient depends on which row of a table is read.

Suffixes: B rows, E events of one type, A attributes, F sparse features, C numbers, K objectives.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from model.batch import Batch, EventBatch
from model.config import FeatureSet
from model.foundation import training_loss
from model.parallel import Engine
from pipeline.pretraining.setup import build_engine
from pipeline.run.config import RunConfig
from pipeline.run.paths import Run

LONGEST_GAP_S, LONGEST_AGE_S = 3_600.0, 30 * 86_400.0
CLICK_RATE = 0.05


def jagged(num_rows: int, longest: int, seed: int) -> Tensor:
    """Lengths [B] between 1 and `longest`, half of it on average; one row has all of it."""
    draw = torch.Generator().manual_seed(seed)
    lengths_B = torch.randint(1, longest + 1, (num_rows,), generator=draw)
    lengths_B[0] = longest
    return lengths_B


def synthetic(config: RunConfig, lengths: Mapping[str, Tensor], seed: int) -> Batch:
    """A batch whose rows have these histories per event type; ids, numbers and labels are drawn."""
    draw = torch.Generator().manual_seed(seed)
    features = config.features
    num_rows = len(next(iter(lengths.values())))
    labels_BK = torch.rand(num_rows, len(config.objectives), generator=draw) < CLICK_RATE
    return Batch(
        ids_BF=_ids(features, [f.table for f in features.sparse], num_rows, draw),
        dense_BC=torch.randn(num_rows, len(features.dense_columns), generator=draw),
        events={
            e.name: _events(features, [a.table for a in e.attributes], lengths[e.name], draw)
            for e in features.events
        },
        surface_B=torch.randint(0, len(config.surfaces), (num_rows,), generator=draw),
        labels_BK=labels_BK.float(),
        mask_BK=torch.ones(labels_BK.shape),
        weight_BK=torch.ones(labels_BK.shape),
        row_B=torch.arange(num_rows),
    )


def _events(
    features: FeatureSet, tables: Sequence[str], lengths_B: Tensor, draw: torch.Generator
) -> EventBatch:
    total = int(lengths_B.sum())
    return EventBatch(
        ids_EA=_ids(features, tables, total, draw),
        lengths_B=lengths_B,
        gap_E=torch.rand(total, generator=draw) * LONGEST_GAP_S,
        age_E=torch.rand(total, generator=draw) * LONGEST_AGE_S,
    )


def _ids(
    features: FeatureSet, tables: Sequence[str], num_rows: int, draw: torch.Generator
) -> Tensor:
    buckets = {t.name: t.buckets for t in features.tables}
    columns = [torch.randint(0, buckets[t], (num_rows,), generator=draw) for t in tables]
    return torch.stack(columns, dim=1)


def engine_of(config: RunConfig) -> Engine:
    """The engine that `pretrain` would train this config with."""
    torch.set_num_threads(config.train.threads)
    return build_engine(Run(folder=Path(), config=config))


def step(engine: Engine, batch: Batch) -> float:
    """One training step: forward, backward, both optimizers; its seconds of the processor."""
    began = time.process_time()
    output = engine.forward(batch)
    loss = training_loss(output, batch, torch.ones(batch.labels_BK.shape[1]))
    engine.backward(loss)
    engine.step()
    return time.process_time() - began
