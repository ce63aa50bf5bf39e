"""The loader that one writes first: a torch Dataset of rows, and a DataLoader that collates them.

It is given everything in memory and hashed, as the vectorised loader has it, so that the two differ
in how they make a batch alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from model.batch import Batch, EventBatch
from pipeline.mixing.loader import Loader
from pipeline.mixing.packing import SECOND_US

Row = dict[str, Any]


class Rows(Dataset[Row]):
    """One row of a loader at a time: its ids, its dense values, its labels and its last events."""

    def __init__(self, loader: Loader) -> None:
        self.ids_NF, self.dense_NC = loader._ids_NF, loader._dense_NC
        self.surface_N, self.ts_N = loader.columns["surface"], loader.columns["ts_us"]
        self.tasks, self.packs, self.spans = loader._tasks, loader._packs, loader._spans

    def __len__(self) -> int:
        """Rows."""
        return len(self.ids_NF)

    def __getitem__(self, n: int) -> Row:
        """Row `n`."""
        labels, mask, weight = (self.tasks[p][n] for p in ("y", "m", "w"))
        events = {}
        for name, pack in self.packs.items():
            begin, end = (int(place[n]) for place in self.spans[name])
            begin = max(begin, end - pack.max_len)
            ts = pack.ts_E[begin:end]
            gap = np.zeros(end - begin, dtype=np.float32)
            gap[1:] = (ts[1:] - ts[:-1]) / SECOND_US
            age = ((self.ts_N[n] - ts) / SECOND_US).astype(np.float32)
            events[name] = (pack.ids_EA[begin:end], gap, age)
        return {
            "row": n,
            "ids": self.ids_NF[n],
            "dense": self.dense_NC[n],
            "surface": int(self.surface_N[n]),
            "labels": labels * mask,
            "mask": mask,
            "weight": weight,
            "events": events,
        }


def row_batches(loader: Loader) -> Callable[[Iterable[int]], Iterator[Batch]]:
    """A function that gives the loader's batches of some indices, made row by row."""
    rows, size = Rows(loader), loader.batch_size

    def batches(indices: Iterable[int]) -> Iterator[Batch]:
        wanted = [list(range(i * size, min((i + 1) * size, len(rows)))) for i in indices]
        yield from DataLoader(rows, batch_sampler=wanted, collate_fn=collate)

    return batches


def collate(rows: list[Row]) -> Batch:
    """Stack the rows and put their events one after the other."""

    def stacked(name: str) -> torch.Tensor:
        return torch.from_numpy(np.stack([row[name] for row in rows]))

    return Batch(
        ids_BF=stacked("ids").long(),
        dense_BC=stacked("dense"),
        events={name: _joined([row["events"][name] for row in rows]) for name in rows[0]["events"]},
        surface_B=torch.tensor([row["surface"] for row in rows]),
        labels_BK=stacked("labels"),
        mask_BK=stacked("mask"),
        weight_BK=stacked("weight"),
        row_B=torch.tensor([row["row"] for row in rows]),
    )


def _joined(events: list[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> EventBatch:
    ids, gap, age = (torch.from_numpy(np.concatenate(part)) for part in zip(*events, strict=True))
    lengths = torch.tensor([len(part[1]) for part in events])
    return EventBatch(ids_EA=ids.long(), lengths_B=lengths, gap_E=gap, age_E=age)
