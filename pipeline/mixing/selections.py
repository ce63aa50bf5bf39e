"""Selections as places in a bucket: which labels fall into a span, in which order, as a frame.

A label is an impression and a window; objectives of equal windows share it. Everything is a few
index arrays until the rows that stay are gathered once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from model.config import Objective

I64 = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Labels:
    """One entry per label: its impression's place in the base, when it is known, its window.

    `group` is a place in `windows`.
    """

    place: I64
    label_us: I64
    group: NDArray[np.int8]

    def __len__(self) -> int:
        return len(self.place)

    def take(self, rows: Mask | I64) -> Labels:
        """The labels of a mask or an index."""
        return Labels(place=self.place[rows], label_us=self.label_us[rows], group=self.group[rows])

    def order(self) -> I64:
        """Indices that sort by label time, then by place."""
        return np.lexsort((self.place, self.label_us))


def windows(objectives: Sequence[Objective]) -> list[list[str]]:
    """Names of the objectives by window, shortest first."""
    hours = sorted({o.window_hours for o in objectives})
    return [[o.name for o in objectives if o.window_hours == h] for h in hours]


def known_labels(
    objectives: Sequence[Objective], base: pl.DataFrame, begin: int, end: int
) -> Labels:
    """The mature labels that are known in [begin, end), unsorted."""
    places, times, groups = [], [], []
    for group, names in enumerate(windows(objectives)):
        known, mature = (base[f"{p}_{names[0]}"].to_numpy() for p in ("known", "mature"))
        place = np.flatnonzero((known >= begin) & (known < end) & mature)
        places.append(place)
        times.append(known[place])
        groups.append(np.full(len(place), group, dtype=np.int8))
    return Labels(
        place=np.concatenate(places),
        label_us=np.concatenate(times),
        group=np.concatenate(groups),
    )


def logged_labels(objectives: Sequence[Objective], base: pl.DataFrame, begin: int) -> Labels:
    """Every impression from `begin` on, once, for its click label; label time = its own time."""
    ts_us = base["ts_us"].to_numpy()
    place = np.flatnonzero(ts_us >= begin)
    click = next(i for i, names in enumerate(windows(objectives)) if "click" in names)
    group = np.full(len(place), click, dtype=np.int8)
    return Labels(place=place, label_us=ts_us[place], group=group)


def positive_labels(objectives: Sequence[Objective], base: pl.DataFrame, labels: Labels) -> Mask:
    """Labels that are positive for an objective of their window."""
    found = np.zeros(len(labels), dtype=bool)
    for group, names in enumerate(windows(objectives)):
        mine = labels.group == group
        for name in names:
            found[mine] |= base[f"y_{name}"].to_numpy()[labels.place[mine]] == 1
    return found


def rows_of(
    objectives: Sequence[Objective],
    base: pl.DataFrame,
    labels: Labels,
    *,
    columns: Sequence[str],
    shift: NDArray[np.float64] | None = None,
    weights: Mapping[str, NDArray[np.float64]] | None = None,
) -> dict[str, pl.Series]:
    """Columns of the labels in their order: `columns` of the base, label_us, shift, y, m, w.

    y is 0 where m is False; weights are 1 and the shift is 0 where none are given.
    """
    found = {s.name: s for s in base.select(columns)[labels.place].get_columns()}
    found["label_us"] = pl.Series(labels.label_us)
    found["shift"] = _floats(shift if shift is not None else np.zeros(len(labels)))
    ones = np.ones(len(labels))
    for group, names in enumerate(windows(objectives)):
        mine = labels.group == group
        for name in names:
            y = base[f"y_{name}"].to_numpy()[labels.place]
            found[f"y_{name}"] = pl.Series(np.where(mine, y, 0), dtype=pl.Int8)
            found[f"m_{name}"] = pl.Series(mine)
            found[f"w_{name}"] = _floats((weights or {}).get(name, ones))
    return found


def _floats(values: NDArray[np.float64]) -> pl.Series:
    return pl.Series(values.astype(np.float32), dtype=pl.Float32)
