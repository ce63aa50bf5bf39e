"""Learning rates of the ladder: tuned at some rungs of every family, between them in proportion."""

from __future__ import annotations

import json
import math
from pathlib import Path

from pipeline.pretraining.scaling.sizing import ladder_of
from pipeline.run.manifest import need_manifest
from pipeline.run.paths import Run
from pipeline.run.scaling import Point, Rates, ScalingConfig, trials


def rates_of(run: Run, point: Point) -> tuple[float, float]:
    """Dense and table learning rates of a point; those of a trial are the trial's own."""
    ladder = ladder_of(run.config)
    if point.trial is not None:
        return ladder.trials[point.trial]
    found = chosen(run, point)
    if not found:
        return ladder.trials[0]
    dense = _between(ladder, point.rung, [(r.rung, r.dense) for r in found])
    return dense, _between(ladder, point.rung, [(r.rung, r.sparse) for r in found])


def chosen(run: Run, like: Point) -> tuple[Rates, ...]:
    """The rates of a point's family and labels: the known ones, or the best trial of every rung.

    Best is the lowest NE of the forecasts over the last part of the training pass: no held-out row
    has a say. `DataError` when a trial has not been run.
    """
    ladder = ladder_of(run.config)
    family = like.arch, like.labels
    best: dict[int, tuple[float, Point]] = {}
    for point in trials(ladder):
        if (point.arch, point.labels) != family:
            continue
        folder = run.output("scaling_tune", point.unit)
        need_manifest(folder)
        ne = _forecast(folder)
        if point.rung not in best or ne < best[point.rung][0]:
            best[point.rung] = (ne, point)
    known = tuple(r for r in ladder.rates if (r.arch, r.labels) == family)
    return known or tuple(_rates(ladder, point) for _, point in best.values())


def _rates(ladder: ScalingConfig, point: Point) -> Rates:
    dense, sparse = ladder.trials[point.trial or 0]
    return Rates(arch=point.arch, labels=point.labels, rung=point.rung, dense=dense, sparse=sparse)


def _forecast(folder: Path) -> float:
    """NE of a trial's forecasts; infinite where it diverged."""
    found = json.loads((folder / "result.json").read_text())["forecast_ne"]
    return math.inf if found is None else float(found)


def _between(ladder: ScalingConfig, rung: int, known: list[tuple[int, float]]) -> float:
    """Geometric between the two tuned rungs around a rung, by log FLOPs; level beyond them."""
    known = sorted(known)
    below = [k for k in known if k[0] <= rung] or known[:1]
    above = [k for k in known if k[0] >= rung] or known[-1:]
    (low, first), (high, last) = below[-1], above[0]
    if low == high:
        return first
    size = [math.log(ladder.mflops[r]) for r in (low, rung, high)]
    share = (size[1] - size[0]) / (size[2] - size[0])
    return float(f"{first ** (1 - share) * last**share:.4g}")
