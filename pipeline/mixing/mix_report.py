"""What a mix says about itself: per surface rows, positives, rates, weights and FLOPs."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow.parquet as pq

from model.config import FeatureSet
from pipeline.mixing.budget import Candidates, Plan

# Ids that the selections need as keys, whether or not they are features too.
KEYS = frozenset({"user_id", "ad_id", "request_id", "impression_id", "surface", "ts_us"})
Sums = dict[str, float]


class MixReport:
    """Sums over the written selections, bucket by bucket."""

    def __init__(self, surfaces: tuple[str, ...], objectives: tuple[str, ...]) -> None:
        self.surfaces, self.objectives = surfaces, objectives
        self.selections: dict[str, None] = {}  # in the order in which they came
        self._sums: dict[tuple[str, int], Sums] = defaultdict(lambda: defaultdict(float))

    def add(self, selection: str, rows: pl.DataFrame) -> None:
        """Count a bucket's rows of a selection."""
        self.selections[selection] = None
        parts = [pl.len().alias("rows")]
        for name in self.objectives:
            y, m, w = (pl.col(f"{p}_{name}").cast(pl.Float64) for p in ("y", "m", "w"))
            parts += [
                m.sum().alias(f"{name}_labels"),
                (y * m).sum().alias(f"{name}_positives"),
                (w * m).sum().alias(f"{name}_weight"),
                (w * w * m).sum().alias(f"{name}_squares"),
                (w * y * m).sum().alias(f"{name}_weighted_positives"),
            ]
        for row in rows.group_by("surface").agg(parts).iter_rows(named=True):
            place = self._sums[selection, int(row.pop("surface"))]
            for name, value in row.items():
                place[name] += value

    def rows(self, selection: str) -> int:
        """Rows of a selection."""
        return int(sum(s["rows"] for (name, _), s in self._sums.items() if name == selection))

    def figures(self, reference: str, plan: Plan, found: Candidates) -> dict[str, Any]:
        """The manifest's figures; `table` is a line per surface for people."""
        kept = plan.keeps(found.surface, found.positive, found.chance)
        surfaces = {
            name: self._surface(place, plan, found, kept)
            for place, name in enumerate(self.surfaces)
        }
        return {
            "surfaces": surfaces,
            "selections": {name: self._selection(name) for name in self.selections},
            "table": self._table(surfaces, plan.flops_mix),
            "reference_surface": reference,
            "flops_mix": plan.flops_mix,
            "flops_reference": plan.flops_reference,
            "flops_ratio": plan.flops_mix / max(plan.flops_reference, 1.0),
        }

    def _surface(
        self, place: int, plan: Plan, found: Candidates, kept: np.ndarray
    ) -> dict[str, Any]:
        mine = found.surface == place
        return {
            "candidates": int(mine.sum()),
            "positives": int((mine & found.positive).sum()),
            "kept": int((mine & kept).sum()),
            "sampled_out": int((mine & ~kept).sum()),
            "share": float(plan.shares[place]),
            "rate": float(plan.rates[place]),
            "flops": float(found.flops[mine & kept].sum()),
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
