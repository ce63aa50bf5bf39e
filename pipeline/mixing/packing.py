"""Rows and events as packed matrices: ids hashed into table rows once, no list columns.

Suffixes: N rows, F sparse features, C dense columns, E events, A attributes of an event.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from model.config import EventType, FeatureSet
from pipeline.mixing.hashing import table_row
from pipeline.mixing.sequences import Sequences
from pipeline.mixing.timeline import TimelineReader
from pipeline.run.errors import ContractError

# An event's action shares the table of the surfaces: kept apart, 0 and 1 would be surfaces.
ACTION_ID_BASE: Final = 1_000_003
SECOND_US: Final = 1_000_000


@dataclass(frozen=True, kw_only=True)
class EventSlice:
    """Visible events of some rows, concatenated, oldest first (see model.batch.EventBatch)."""

    ids_EA: np.ndarray  # int64
    lengths_N: np.ndarray  # int64
    gap_E: np.ndarray  # float32, seconds
    age_E: np.ndarray  # float32, seconds


class EventPack:
    """Events of one type of several buckets in one matrix of table rows.

    `gap_E` are the seconds since the event before, whosever it was: the first of a slice has none.
    """

    def __init__(self, event: EventType, features: FeatureSet, parts: Sequence[Sequences]) -> None:
        self.max_len = event.max_len
        buckets = {t.name: t.buckets for t in features.tables}
        self.base = np.concatenate([[0], np.cumsum([len(p.ts_us) for p in parts])]).astype(np.int64)
        self.ts_E = np.concatenate([p.ts_us for p in parts])
        self.gap_E = np.zeros(len(self.ts_E), dtype=np.float32)
        self.gap_E[1:] = np.diff(self.ts_E) / SECOND_US
        self.ids_EA = np.empty((len(self.ts_E), len(event.attributes)), dtype=np.int32)
        for a, attribute in enumerate(event.attributes):
            ids = np.concatenate([np.asarray(p.columns[attribute.column]) for p in parts])
            if attribute.column == "action":
                ids = ids.astype(np.int64) + ACTION_ID_BASE
            self.ids_EA[:, a] = table_rows(ids, buckets[attribute.table])

    def slice(self, begin_N: np.ndarray, end_N: np.ndarray, ts_N: np.ndarray) -> EventSlice:
        """The last `max_len` events of every [begin, end), positions being packed ones."""
        lengths = np.minimum(end_N - begin_N, self.max_len)
        before = np.cumsum(lengths) - lengths
        place = np.repeat(end_N - lengths - before, lengths)
        place += np.arange(len(place))
        # take is several times faster than indexing, and "clip" spares it a pass: all places exist
        age = np.repeat(ts_N, lengths)
        age -= self.ts_E.take(place, mode="clip")
        gap = self.gap_E.take(place, mode="clip")
        gap[before[lengths > 0]] = 0.0
        return EventSlice(
            ids_EA=self.ids_EA.take(place, axis=0, mode="clip").astype(np.int64),
            lengths_N=lengths,
            gap_E=gap,
            age_E=(age / SECOND_US).astype(np.float32),
        )


def pack_events(features: FeatureSet, readers: Sequence[TimelineReader]) -> dict[str, EventPack]:
    """The packed timelines of the given buckets for every event type of `features`."""
    return {
        e.name: EventPack(e, features, [r.sequences(e.name) for r in readers])
        for e in features.events
    }


def sparse_ids(features: FeatureSet, rows: pl.DataFrame) -> np.ndarray:
    """Table rows of every sparse feature, int32 [N, F]; `surface` is an index by now."""
    buckets = {t.name: t.buckets for t in features.tables}
    ids_NF = np.empty((len(rows), len(features.sparse)), dtype=np.int32)
    for f, feature in enumerate(features.sparse):
        ids_NF[:, f] = table_rows(rows[feature.name].to_numpy(), buckets[feature.table])
    return ids_NF


def table_rows(ids: np.ndarray, buckets: int) -> np.ndarray:
    """`table_row` of every id, int64; ids of a small range are hashed once each."""
    low, high = (int(ids.min()), int(ids.max())) if len(ids) else (0, 0)
    if high - low >= len(ids) // 2:
        return table_row(ids, buckets)
    return table_row(np.arange(low, high + 1), buckets)[ids.astype(np.int64) - low]


def dense_values(features: FeatureSet, rows: pl.DataFrame) -> np.ndarray:
    """Dense inputs in `features.dense_columns` order, transforms applied, float32 [N, C].

    Match counts are raw in `rows` and enter as log(1 + n). `ContractError` names a column that
    holds a value that is not finite.
    """
    logs = {d.name for d in features.dense if d.transform == "log1p"}
    logs |= {c for m in features.matches for c in m.columns}
    names = features.dense_columns
    values_NC = np.empty((len(rows), len(names)), dtype=np.float32)
    for c, name in enumerate(names):
        column = rows[name].cast(pl.Float32).to_numpy()
        values_NC[:, c] = np.log1p(np.maximum(column, 0)) if name in logs else column
    bad = [n for c, n in enumerate(names) if not np.isfinite(values_NC[:, c]).all()]
    if bad:
        raise ContractError(
            f"dense columns {bad} hold values that are not finite; ingest quarantines such rows: "
            "run it again"
        )
    return values_NC


def feature_columns(features: FeatureSet) -> list[str]:
    """Canonical columns that `sparse_ids` and `dense_values` read, `surface` aside."""
    names = [f.name for f in features.sparse] + [d.name for d in features.dense]
    return [n for n in dict.fromkeys(names) if n != "surface"]
