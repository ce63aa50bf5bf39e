"""Selections as places in a bucket: which labels fall into a span, in which order, as columns.

A label is an impression and a window; objectives of equal windows share it. Everything is a few
index arrays until the rows that stay are gathered, a row group at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model.config import Objective

I64 = NDArray[np.int64]
Mask = NDArray[np.bool_]
Columns = Mapping[str, NDArray[Any]]  # of a bucket's impressions, in canonical order


@dataclass(frozen=True, kw_only=True)
class Labels:
    """One entry per label: its impression's place in the bucket, when it is known, its window.

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


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Labels and the order in which they come, what the loss adds to their logits, and weights.

    Shift and weights (by objective) belong to the labels as they are, not as they come; without
    any the shift is 0, a weight 1.
    """

    labels: Labels
    order: I64
    shift: NDArray[np.float64] | None = None
    weights: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)


def windows(objectives: Sequence[Objective]) -> list[list[str]]:
    """Names of the objectives by window, shortest first."""
    hours = sorted({o.window_hours for o in objectives})
    return [[o.name for o in objectives if o.window_hours == h] for h in hours]


def click_group(objectives: Sequence[Objective]) -> int:
    """The place in `windows` of the click's, the one without delay."""
    return next(i for i, names in enumerate(windows(objectives)) if "click" in names)


def known_labels(objectives: Sequence[Objective], base: Columns, begin: int, end: int) -> Labels:
    """The labels that are known in [begin, end), unsorted.

    They are mature where `end` is at most the end of the run's day: that is what mature means.
    """
    places, times, groups = [], [], []
    for group, names in enumerate(windows(objectives)):
        known = base[f"known_{names[0]}"]
        place = np.flatnonzero((known >= begin) & (known < end))
        places.append(place)
        times.append(known[place])
        groups.append(np.full(len(place), group, dtype=np.int8))
    return Labels(
        place=np.concatenate(places),
        label_us=np.concatenate(times),
        group=np.concatenate(groups),
    )


def labels_at(
    objectives: Sequence[Objective],
    base: Columns,
    place: NDArray[np.integer[Any]],
    group: NDArray[np.int8],
) -> Labels:
    """Labels by the places of their impressions and their windows."""
    label_us = np.empty(len(place), dtype=np.int64)
    for index, names in enumerate(windows(objectives)):
        mine = group == index
        label_us[mine] = base[f"known_{names[0]}"][place[mine]]
    return Labels(place=place.astype(np.int64), label_us=label_us, group=group)


def logged_labels(objectives: Sequence[Objective], base: Columns, begin: int) -> Labels:
    """Every impression from `begin` on, once, for its click label; label time = its own time."""
    ts_us = base["ts_us"]
    place = np.flatnonzero(ts_us >= begin)
    group = np.full(len(place), click_group(objectives), dtype=np.int8)
    return Labels(place=place, label_us=ts_us[place], group=group)


def positive_labels(
    objectives: Sequence[Objective], base: Columns, labels: Labels
) -> NDArray[np.uint8]:
    """For which objectives of its window a label is positive: bit i for the i-th objective."""
    found = np.zeros(len(labels), dtype=np.uint8)
    for group, names in enumerate(windows(objectives)):
        mine = np.flatnonzero(labels.group == group)
        place = labels.place[mine]
        for bit, objective in enumerate(objectives):
            if objective.name in names:
                found[mine] |= (base[f"y_{objective.name}"][place] == 1).astype(np.uint8) << bit
    return found


def rows_of(
    objectives: Sequence[Objective],
    base: Columns,
    selection: Selection,
    *,
    columns: Sequence[str],
    step: int,
) -> Iterator[dict[str, NDArray[Any]]]:
    """Columns of a selection, `step` rows at a time: `columns` of the base, g, label_us, shift, y,
    m, w. A selection without rows gives its columns once.

    y is 0 where m is False. The columns of the base hold until the next rows are asked for, which
    take their place.
    """
    memory = {n: np.empty(min(step, len(selection.order)), base[n].dtype) for n in columns}
    for begin in range(0, max(len(selection.order), 1), step):
        rows = selection.order[begin : begin + step]
        labels = selection.labels.take(rows)
        found = {n: _gathered(base[n], labels.place, memory[n]) for n in columns}
        found |= {"g": labels.place, "label_us": labels.label_us}
        found["shift"] = _floats(selection.shift, rows, 0.0)
        for group, names in enumerate(windows(objectives)):
            mine = labels.group == group
            for name in names:
                found[f"y_{name}"] = base[f"y_{name}"][labels.place] * mine
                found[f"m_{name}"] = mine
                found[f"w_{name}"] = _floats(selection.weights.get(name), rows, 1.0)
        yield found


def _gathered(values: NDArray[Any], place: I64, memory: NDArray[Any]) -> NDArray[Any]:
    # memory that is asked for anew costs more than the gathering; all places are valid
    return np.take(values, place, out=memory[: len(place)], mode="clip")


def _floats(values: NDArray[np.float64] | None, rows: I64, default: float) -> NDArray[np.float32]:
    if values is None:
        return np.full(len(rows), default, dtype=np.float32)
    return values[rows].astype(np.float32)
