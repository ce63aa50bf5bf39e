"""The sparse part: every id of a batch, looked up in shared tables.

Suffixes: B rows, F sparse features, E events of one type, A attributes, D embedding width.

A table is shared by all features and event attributes that name it, and is asked once per batch,
for every id that belongs to it: the cost does not depend on how many features there are. A plain
model holds `PlainTables`; training puts TorchRec tables in their place (`model/tables.py`), so
that what only predicts need not load TorchRec.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.batch import Batch, EventBatch
from model.config import FeatureSet, ModelConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class EventInputs:
    """Embedded events of one type, flat: blocks of attributes side by side, and the times."""

    embedded: tuple[Tensor, ...]  # each [E, some attributes * D]
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

    @property
    def order(self) -> list[int]:
        """Where each column lies after grouping by table."""
        grouped = [i for _, places in self.by_table for i in places]
        return [grouped.index(i) for i in range(len(grouped))]

    @staticmethod
    def of(tables: tuple[str, ...]) -> _Columns:
        names = tuple(dict.fromkeys(tables))
        groups = tuple((n, tuple(i for i, t in enumerate(tables) if t == n)) for n in names)
        return _Columns(groups)


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
        self.order = self.features.order
        self.in_order = self.order == sorted(self.order)
        buckets = {t.name: t.buckets for t in features.tables if t.name in used}
        self.tables: nn.Module = PlainTables(buckets, self.width, config.embedding_init_sd)

    def forward(self, batch: Batch) -> DenseInputs:
        """Look up every id of the batch."""
        parts: dict[str, list[Tensor]] = {name: [] for name in self.table_names}
        _take(self.features, batch.ids_BF, parts)
        for name, columns in self.events.items():
            _take(columns, batch.events[name].ids_EA, parts)
        found = self.tables({name: torch.cat(ids) for name, ids in parts.items()})
        # one split per table: its gradient is one cat
        pieces = {
            name: iter(found[name].split([p.numel() for p in ids])) for name, ids in parts.items()
        }
        embedded_BX = torch.cat(self._blocks(self.features, pieces, batch.num_rows), dim=1)
        embedded_BFD = embedded_BX.view(batch.num_rows, -1, self.width)
        return DenseInputs(
            embedded_BFD=embedded_BFD if self.in_order else embedded_BFD[:, self.order],
            dense_BC=batch.dense_BC,
            events={name: self._events(name, batch.events[name], pieces) for name in self.events},
            surface_B=batch.surface_B,
        )

    def _events(
        self, name: str, events: EventBatch, pieces: dict[str, Iterator[Tensor]]
    ) -> EventInputs:
        return EventInputs(
            embedded=self._blocks(self.events[name], pieces, events.ids_EA.shape[0]),
            lengths_B=events.lengths_B,
            gap_E=events.gap_E,
            age_E=events.age_E,
        )

    def _blocks(
        self, columns: _Columns, pieces: dict[str, Iterator[Tensor]], num_rows: int
    ) -> tuple[Tensor, ...]:
        """Per table [rows, its columns * D], tables in the order of `columns.by_table`."""
        return tuple(
            next(pieces[table]).reshape(num_rows, len(places) * self.width)
            for table, places in columns.by_table
        )


def _take(columns: _Columns, ids_XA: Tensor, parts: dict[str, list[Tensor]]) -> None:
    for table, places in columns.by_table:
        parts[table].append(ids_XA[:, list(places)].reshape(-1))
