"""The sparse part: every id of a batch, looked up in shared tables.

Suffixes: B rows, F sparse features, E events of one type, A attributes, D embedding width.

A table is shared by all features and event attributes that name it, and is asked once per batch,
for every id that belongs to it: the cost does not depend on how many features there are. A plain
model holds `PlainTables`; training puts TorchRec tables in their place (`model/tables.py`), so
that what only predicts need not load TorchRec.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.batch import Batch, EventBatch
from model.config import FeatureSet, ModelConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class EventInputs:
    """Embedded events of one type, flat: attributes concatenated, and the times."""

    embedded_EX: Tensor
    lengths_B: Tensor
    gap_E: Tensor
    age_E: Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class DenseInputs:
    """What the dense part reads: embedded features and events, numbers, surfaces."""

    embedded_BFD: Tensor
    dense_BC: Tensor
    events: dict[str, EventInputs]
    surface_B: Tensor


@dataclass(frozen=True, slots=True)
class _Columns:
    """Columns of one id matrix (the features, or one event type's attributes) per table."""

    by_table: tuple[tuple[str, tuple[int, ...]], ...]
    restore: tuple[int, ...]  # place of each column after grouping by table

    @staticmethod
    def of(tables: tuple[str, ...]) -> _Columns:
        names = tuple(dict.fromkeys(tables))
        groups = tuple((n, tuple(i for i, t in enumerate(tables) if t == n)) for n in names)
        grouped = [i for _, columns in groups for i in columns]
        return _Columns(groups, tuple(grouped.index(i) for i in range(len(tables))))


class PlainTables(nn.Module):
    """Embedding tables as plain parameters."""

    def __init__(self, buckets: dict[str, int], width: int, init_sd: float) -> None:
        super().__init__()
        self.weights = nn.ParameterDict(
            {n: nn.Parameter(torch.randn(size, width) * init_sd) for n, size in buckets.items()}
        )

    def forward(self, ids: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Embeddings of each table's ids."""
        return {name: F.embedding(found, self.weights[name]) for name, found in ids.items()}


class SparseArch(nn.Module):
    """The lookups of a model: ids of a batch in, embedded inputs of the dense part out."""

    def __init__(self, features: FeatureSet, config: ModelConfig) -> None:
        super().__init__()
        self.width = config.embedding_dim
        used = [f.table for f in features.sparse]
        used += [a.table for e in features.events for a in e.attributes]
        self.table_names = tuple(t.name for t in features.tables if t.name in used)
        self.features = _Columns.of(tuple(f.table for f in features.sparse))
        self.events = {
            e.name: _Columns.of(tuple(a.table for a in e.attributes)) for e in features.events
        }
        buckets = {t.name: t.buckets for t in features.tables if t.name in used}
        self.tables: nn.Module = PlainTables(buckets, self.width, config.embedding_init_sd)

    def forward(self, batch: Batch) -> DenseInputs:
        """Look up every id of the batch."""
        found = self.tables(self._ids(batch))
        begin = dict.fromkeys(self.table_names, 0)
        features_BX = self._join(self.features, found, begin, batch.num_rows)
        events = {
            name: _event_inputs(
                self._join(columns, found, begin, batch.events[name].ids_EA.shape[0]),
                batch.events[name],
            )
            for name, columns in self.events.items()
        }
        return DenseInputs(
            embedded_BFD=features_BX.unflatten(1, (-1, self.width)),
            dense_BC=batch.dense_BC,
            events=events,
            surface_B=batch.surface_B,
        )

    def _ids(self, batch: Batch) -> dict[str, Tensor]:
        """Every id of the batch, per table: those of the features, then of each event type."""
        parts: dict[str, list[Tensor]] = {name: [] for name in self.table_names}
        _split(self.features, batch.ids_BF, parts)
        for name, columns in self.events.items():
            _split(columns, batch.events[name].ids_EA, parts)
        return {name: torch.cat(found) for name, found in parts.items()}

    def _join(
        self, columns: _Columns, found: Mapping[str, Tensor], begin: dict[str, int], rows: int
    ) -> Tensor:
        """[rows, columns * D], columns in their declared order."""
        parts = []
        for table, places in columns.by_table:
            size = rows * len(places)
            part = found[table].narrow(0, begin[table], size)
            parts.append(part.reshape(rows, len(places) * self.width))
            begin[table] += size
        joined = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
        if columns.restore == tuple(range(len(columns.restore))):
            return joined
        return joined.unflatten(1, (-1, self.width))[:, list(columns.restore)].flatten(1)


def _split(columns: _Columns, ids_XA: Tensor, parts: dict[str, list[Tensor]]) -> None:
    for table, places in columns.by_table:
        parts[table].append(ids_XA[:, list(places)].reshape(-1))


def _event_inputs(embedded_EX: Tensor, events: EventBatch) -> EventInputs:
    return EventInputs(
        embedded_EX=embedded_EX,
        lengths_B=events.lengths_B,
        gap_E=events.gap_E,
        age_E=events.age_E,
    )
