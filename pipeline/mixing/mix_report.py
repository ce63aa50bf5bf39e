"""What a mix says about itself: per surface rows, positives, rates, weights and FLOPs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from model.config import FeatureSet
from pipeline.mixing.budget import Candidates, Plan
from pipeline.mixing.selections import Columns

# Ids that the selections need as keys, whether or not they are features too.
KEYS = frozenset({"user_id", "ad_id", "request_id", "impression_id", "surface", "ts_us"})
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
        for chunk in chunks:
            self._count("rows", selection, chunk["surface"])
            for name in self.objectives:
                self._count_labels(name, selection, chunk)
            yield chunk

    def _count_labels(self, name: str, selection: str, chunk: Columns) -> None:
        mine = chunk[f"m_{name}"]
        surface, weight = chunk["surface"][mine], chunk[f"w_{name}"][mine].astype(np.float64)
        positive = chunk[f"y_{name}"][mine] == 1
        self._count(f"{name}_labels", selection, surface)
        self._count(f"{name}_positives", selection, surface[positive])
        self._count(f"{name}_weight", selection, surface, weight)
        self._count(f"{name}_squares", selection, surface, weight * weight)
        self._count(f"{name}_weighted_positives", selection, surface[positive], weight[positive])

    def _count(
        self, what: str, selection: str, surface: np.ndarray, weights: np.ndarray | None = None
    ) -> None:
        counts = np.bincount(surface, weights, minlength=len(self.surfaces))
        for place, count in enumerate(counts.tolist()):
            self._sums[selection, place][what] += count

    def rows(self, selection: str) -> int:
        """Rows of a selection."""
        return int(sum(s["rows"] for (name, _), s in self._sums.items() if name == selection))

    def figures(self, reference: str, plan: Plan, found: Candidates) -> dict[str, Any]:
        """The manifest's figures; `table` is a line per surface for people."""
        surfaces = self._surfaces(plan, found)
        return {
            "surfaces": surfaces,
            "selections": {name: self._selection(name) for name in self.selections},
            "table": self._table(surfaces, plan.flops_mix),
            "reference_surface": reference,
            "flops_mix": plan.flops_mix,
            "flops_reference": plan.flops_reference,
            "flops_ratio": plan.flops_mix / max(plan.flops_reference, 1.0),
        }

    def _surfaces(self, plan: Plan, found: Candidates) -> dict[str, Any]:
        kept = plan.keeps(found.surface, found.positive, found.chance)
        num = len(self.surfaces)
        candidates = np.bincount(found.surface, minlength=num)
        positives = np.bincount(found.surface[found.positive], minlength=num)
        stay = np.bincount(found.surface[kept], minlength=num)
        flops = np.bincount(found.surface[kept], found.flops[kept], minlength=num)
        return {
            name: {
                "candidates": int(candidates[place]),
                "positives": int(positives[place]),
                "kept": int(stay[place]),
                "sampled_out": int(candidates[place] - stay[place]),
                "share": float(plan.shares[place]),
                "rate": float(plan.rates[place]),
                "flops": float(flops[place]),
                "objectives": {o: self._labels(place, o) for o in self.objectives},
            }
            for place, name in enumerate(self.surfaces)
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
        parts = [s for (name, _), s in self._sums.items() if name == selection]
        return {name: int(sum(s[name] for s in parts)) for name in counted}

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
