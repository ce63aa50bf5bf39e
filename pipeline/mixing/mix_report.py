"""What a mix says about itself: per surface rows, positives, rates, weights and FLOPs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from model.config import FeatureSet
from pipeline.mixing.budget import Plan
from pipeline.mixing.selections import Columns

# Ids that the selections need as keys, whether or not they are features too.
KEYS = frozenset({"user_id", "ad_id", "request_id", "impression_id", "surface", "ts_us"})
ALL = -1  # in the place of a surface
Sums = dict[str, float]


class MixReport:
    """Sums over the written selections, bucket by bucket."""

    def __init__(self, surfaces: tuple[str, ...], objectives: tuple[str, ...]) -> None:
        self.surfaces, self.objectives = surfaces, objectives
        self.selections: dict[str, None] = {}  # in the order in which they came
        self._sums: dict[tuple[str, int], Sums] = defaultdict(lambda: defaultdict(float))

    def counting(self, selection: str, chunks: Iterable[Columns]) -> Iterator[Columns]:
        """The same chunks of a selection's rows, counted as they pass."""
        self.selections[selection] = None
        totals = self._sums[selection, ALL]
        for chunk in chunks:
            totals["rows"] += len(chunk["surface"])
            for name in self.objectives:
                totals[f"{name}_labels"] += np.count_nonzero(chunk[f"m_{name}"])
                totals[f"{name}_positives"] += np.count_nonzero(chunk[f"y_{name}"])
            if selection == "train":
                self._count(chunk)
            yield chunk

    def _count(self, chunk: Columns) -> None:
        """Training rows, and their labels' number and weights, by surface."""
        surface = chunk["surface"].astype(np.intp)
        self._add("rows", surface)
        for name in self.objectives:
            mine = np.flatnonzero(chunk[f"m_{name}"])
            place, weight = surface[mine], chunk[f"w_{name}"][mine].astype(np.float64)
            y = chunk[f"y_{name}"][mine]
            self._add(f"{name}_labels", place)
            self._add(f"{name}_positives", place, y)
            self._add(f"{name}_weight", place, weight)
            self._add(f"{name}_squares", place, weight * weight)
            self._add(f"{name}_weighted_positives", place, weight * y)

    def _add(self, what: str, surface: np.ndarray, weights: np.ndarray | None = None) -> None:
        counts = np.bincount(surface, weights, minlength=len(self.surfaces))
        for place, count in enumerate(counts.tolist()):
            self._sums["train", place][what] += count

    def rows(self, selection: str) -> int:
        """Rows of a selection."""
        return int(self._sums[selection, ALL]["rows"])

    def figures(self, plan: Plan) -> dict[str, Any]:
        """The manifest's figures; `table` is a line per surface for people."""
        surfaces = {name: self._surface(place, plan) for place, name in enumerate(self.surfaces)}
        return {
            "surfaces": surfaces,
            "selections": {name: self._selection(name) for name in self.selections},
            "table": self._table(surfaces, plan.flops_mix),
            "reference_surface": self.surfaces[plan.reference],
            "flops_mix": plan.flops_mix,
            "flops_reference": plan.flops_reference,
            "flops_ratio": plan.flops_mix / max(plan.flops_reference, 1.0),
        }

    def _surface(self, place: int, plan: Plan) -> dict[str, Any]:
        candidates, kept = int(plan.candidates[place]), int(self._sums["train", place]["rows"])
        return {
            "candidates": candidates,
            "certain": int(plan.certain[place]),
            "kept": kept,
            "sampled_out": candidates - kept,
            "share": float(plan.shares[place]),
            "rate": float(plan.rates[place]),
            "flops": float(plan.flops[place]),
            "objectives": {name: self._labels(place, name) for name in self.objectives},
        }

    def _labels(self, place: int, name: str) -> dict[str, float]:
        """Labels of an objective in training: how many, their weighted rate and their worth.

        `effective` is (sum w)^2 / sum w^2: as many rows of equal weight would say as much.
        """
        sums = self._sums["train", place]
        weight, squares = sums[f"{name}_weight"], sums[f"{name}_squares"]
        return {
            "labels": int(sums[f"{name}_labels"]),
            "positives": int(sums[f"{name}_positives"]),
            "weight": weight,
            "rate": sums[f"{name}_weighted_positives"] / weight if weight else 0.0,
            "effective": weight * weight / squares if squares else 0.0,
        }

    def _selection(self, selection: str) -> dict[str, int]:
        """Rows, labels and positives of a selection over all surfaces."""
        counted = ["rows", *(f"{o}_{p}" for o in self.objectives for p in ("labels", "positives"))]
        return {name: int(self._sums[selection, ALL][name]) for name in counted}

    def _table(self, surfaces: dict[str, Any], flops_mix: float) -> list[dict[str, Any]]:
        return [
            {
                "surface": name,
                "candidates": found["candidates"],
                "kept": found["kept"],
                "rate": round(found["rate"], 4),
                "flops_share": round(found["flops"] / flops_mix, 4) if flops_mix else 0.0,
            }
            | {f"{o}_positives": found["objectives"][o]["positives"] for o in self.objectives}
            | {f"{o}_rate": round(found["objectives"][o]["rate"], 5) for o in self.objectives}
            | {
                f"{o}_effective": round(found["objectives"][o]["effective"])
                for o in self.objectives
            }
            for name, found in surfaces.items()
        ]


def copied_feature_bytes(folder: Path, features: FeatureSet) -> int:
    """Bytes that feature columns take in the Parquet files below `folder`.

    Keys are no copies: a selection points to its rows by them.
    """
    counts = [c for m in features.matches for c in m.columns]
    sparse, dense = [f.name for f in features.sparse], [f.name for f in features.dense]
    names = {*sparse, *dense, *counts} - KEYS
    total = 0
    for path in sorted(folder.rglob("*.parquet")):
        parquet = pq.ParquetFile(path).metadata
        for group in map(parquet.row_group, range(parquet.num_row_groups)):
            chunks = map(group.column, range(group.num_columns))
            total += sum(c.total_compressed_size for c in chunks if c.path_in_schema in names)
    return total
