"""Small models and random batches."""

from __future__ import annotations

import torch

from model.batch import Batch, EventBatch
from model.config import FeatureSet, Objective
from pipeline.run.presets import preset

OBJECTIVES = (Objective(name="click"), Objective(name="conversion", window_hours=24))
NUM_SURFACES = 3


def planted_features() -> FeatureSet:
    return preset("2026-11-29", "smoke").features


def make_batch(
    features: FeatureSet,
    num_rows: int = 16,
    seed: int = 0,
    length: int | None = None,
    num_objectives: int = 2,
) -> Batch:
    """Random rows with labels that depend on ids; `length` fixes all history lengths."""
    draw = torch.Generator().manual_seed(seed)
    buckets = {t.name: t.buckets for t in features.tables}

    def ids(tables: list[str], rows: int) -> torch.Tensor:
        columns = [torch.randint(0, buckets[t], (rows,), generator=draw) for t in tables]
        return torch.stack(columns, 1)

    events = {}
    for event in features.events:
        lengths = torch.randint(0, event.max_len + 1, (num_rows,), generator=draw)
        if length is not None:
            lengths = torch.full((num_rows,), min(length, event.max_len))
        total = int(lengths.sum())
        events[event.name] = EventBatch(
            ids_EA=ids([a.table for a in event.attributes], total),
            lengths_B=lengths,
            gap_E=torch.rand(total, generator=draw) * 3600,
            age_E=torch.rand(total, generator=draw) * 86400,
        )
    ids_BF = ids([f.table for f in features.sparse], num_rows)
    click = (ids_BF[:, 0] + ids_BF[:, 2]) % 2
    labels = torch.stack([click, click * (ids_BF[:, 2] % 2)], 1)[:, :num_objectives]
    return Batch(
        ids_BF=ids_BF,
        dense_BC=torch.randn(num_rows, len(features.dense_columns), generator=draw),
        events=events,
        surface_B=torch.randint(0, NUM_SURFACES, (num_rows,), generator=draw),
        labels_BK=labels.float(),
        mask_BK=(torch.rand(labels.shape, generator=draw) < 0.8).float(),
        weight_BK=torch.ones(labels.shape),
        row_B=torch.arange(num_rows),
    )


def take_row(batch: Batch, row: int) -> Batch:
    """One row of a batch."""
    events = {}
    for name, e in batch.events.items():
        start = int(e.lengths_B[:row].sum())
        part = slice(start, start + int(e.lengths_B[row]))
        events[name] = type(e)(
            ids_EA=e.ids_EA[part],
            lengths_B=e.lengths_B[row : row + 1],
            gap_E=e.gap_E[part],
            age_E=e.age_E[part],
        )
    one = slice(row, row + 1)
    return type(batch)(
        events=events,
        **{
            n: getattr(batch, n)[one]
            for n in ("ids_BF", "dense_BC", "surface_B", "labels_BK", "mask_BK", "weight_BK")
        },
        row_B=batch.row_B[one],
    )
