"""Promotion gates: each looks at one thing and says why it passes or not. Plain functions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from pipeline.run.config import EvaluationConfig


@dataclass(frozen=True, kw_only=True)
class Gate:
    """The verdict of one gate with its reason."""

    gate: str
    passed: bool
    reason: str


def enough_positives(metrics: dict[str, Any], config: EvaluationConfig) -> Gate:
    """The holdout has enough positives of the primary objective to decide anything."""
    found = metrics["overall"].get(config.primary_objective, {}).get("positives", 0)
    return Gate(
        gate="enough_positives",
        passed=found >= config.min_positives,
        reason=f"{found} {config.primary_objective} positives in the holdout, "
        f"at least {config.min_positives} are needed",
    )


def better_than_champion(metrics: dict[str, Any], config: EvaluationConfig) -> Gate:
    """NE of the primary objective over all surfaces is lower, and so is its whole interval.

    Without a champion the constant predictor is the one to beat: NE below 1, interval or not.
    """
    name = "better_than_champion"
    cell = metrics["overall"].get(config.primary_objective)
    if cell is None:
        return Gate(gate=name, passed=False, reason=f"no {config.primary_objective} labels")
    if "difference" not in cell:
        ne = cell["challenger"]["ne"]
        return Gate(
            gate=name,
            passed=_below(ne["value"], 1.0),
            reason=f"first of its lineage: NE {_spread(ne)} against 1 of the constant predictor",
        )
    change = cell["difference"]["ne"]
    passed = _below(change["high"], 0.0)
    verdict = "is better with its interval" if passed else "is not better with its interval"
    return Gate(
        gate=name,
        passed=passed,
        reason=f"{config.primary_objective} NE {verdict}: {_spread(change, signed=True)} "
        f"(challenger - champion)",
    )


def no_cell_worse(metrics: dict[str, Any], config: EvaluationConfig) -> Gate:
    """No surface x objective is surely worse by more than the guard rail.

    A cell fails when its NE is worse by more than `max_worse_pct` and even the better end of its
    interval is worse than the champion; cells with too few positives are not judged.
    """
    name, worst, judged = "no_cell_worse", [], 0
    for label, cell in _cells(metrics):
        if "difference" not in cell or cell["positives"] < config.min_positives:
            continue
        judged += 1
        gain = cell["difference"]["ne_gain_pct"]
        if _below(gain["value"], -config.max_worse_pct) and _below(gain["high"], 0.0):
            worst.append(f"{label} NE {_spread(gain, signed=True)} %")
    if worst:
        reason = f"worse than the rail of {config.max_worse_pct} %: {', '.join(worst)}"
    elif metrics.get("champion") is None:
        reason = "no champion to compare with"
    else:
        reason = f"{judged} surface x objective cells within {config.max_worse_pct} %"
    return Gate(gate=name, passed=not worst, reason=reason)


def calibrated(metrics: dict[str, Any], config: EvaluationConfig) -> Gate:
    """Calibration lies in range: of all clicks by its value, else by any part of its interval.

    A surface's calibration, and that of the sparse conversions, cannot be known better than one
    part in sqrt(positives): only an interval that lies outside of the range says anything.
    """
    low, high = config.calibration_low, config.calibration_high
    parts = [(f"overall/{objective}", cell) for objective, cell in metrics["overall"].items()]
    out = []
    for label, cell in [*parts, *_cells(metrics)]:
        found = cell["challenger"]["calibration"]
        if cell["positives"] < config.min_positives:
            continue
        if label == "overall/click":
            good, shown = low <= _number(found["value"]) <= high, f"{_number(found['value']):.3f}"
        else:
            good, shown = (
                _number(found["high"]) >= low and _number(found["low"]) <= high,
                _spread(found),
            )
        if not good:
            out.append(f"{label} {shown}")
    reason = f"outside of [{low}, {high}]: {', '.join(out)}" if out else f"all in [{low}, {high}]"
    return Gate(gate="calibrated", passed=not out, reason=reason)


def contracts_passed(results: dict[str, dict[str, Any] | None]) -> Gate:
    """Every contract before training was checked and has no critical failure."""
    bad = [name for name, result in results.items() if not (result or {}).get("success", False)]
    missing = [name for name, result in results.items() if result is None]
    if missing:
        reason = f"not checked: {', '.join(missing)}"
    elif bad:
        reason = f"critical failures in {', '.join(bad)}"
    else:
        warned = sum(_warnings(r) for r in results.values() if r)
        reason = f"{', '.join(results)} passed with {warned} warnings"
    return Gate(gate="contracts_passed", passed=not bad, reason=reason)


def _warnings(result: dict[str, Any]) -> int:
    return sum(not e["success"] for e in result.get("expectations", []))


def _cells(metrics: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [
        (f"{surface}/{objective}", cell)
        for surface, cells in metrics["surfaces"].items()
        for objective, cell in cells.items()
    ]


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _below(value: float | None, limit: float) -> bool:
    return value is not None and value < limit


def _spread(found: dict[str, float | None], *, signed: bool = False) -> str:
    sign = "+" if signed else ""
    value, low, high = (f"{_number(found[k]):{sign}.4f}" for k in ("value", "low", "high"))
    return f"{value} [{low}, {high}]"
