from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.evaluation import gates
from pipeline.evaluation.promote import decide, judge
from pipeline.run.config import EvaluationConfig, Parent
from pipeline.run.paths import Run
from pipeline.run.presets import preset

CONFIG = EvaluationConfig(min_positives=50, max_worse_pct=1.0)
GOOD_CONTRACTS: dict[str, dict[str, Any] | None] = {
    "contracts": {"success": True, "expectations": []},
    "mixture_contract": {"success": True, "expectations": [{"success": False}]},
}


def triple(value: float, half: float = 0.01) -> dict[str, float]:
    return {"value": value, "low": value - half, "high": value + half}


def cell(
    ne: float = 0.8, change: float | None = -0.02, half: float = 0.01, positives: int = 500,
    calibration: float = 1.0,
) -> dict[str, Any]:  # fmt: skip
    found: dict[str, Any] = {
        "rows": 10_000,
        "positives": positives,
        "challenger": {"ne": triple(ne), "calibration": triple(calibration, 0.05)},
    }
    if change is not None:
        found["difference"] = {
            "ne": triple(change, half),
            "ne_gain_pct": triple(-100 * change / ne, 100 * half / ne),
        }
    return found


def metrics(overall: dict[str, Any], surface: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "champion": None if "difference" not in overall else {"day": "2026-03-05"},
        "overall": {"click": overall},
        "surfaces": {"feed": {"click": surface or overall}},
    }


@pytest.mark.parametrize(
    ("change", "half", "passes"), [(-0.02, 0.01, True), (-0.02, 0.03, False), (0.01, 0.005, False)]
)
def test_better_only_with_the_whole_interval(change: float, half: float, passes: bool) -> None:
    gate = gates.better_than_champion(metrics(cell(change=change, half=half)), CONFIG)
    assert gate.passed is passes


def test_the_first_champion_must_beat_the_constant() -> None:
    assert gates.better_than_champion(metrics(cell(change=None)), CONFIG).passed
    worse = gates.better_than_champion(metrics(cell(ne=1.001, change=None)), CONFIG)
    assert not worse.passed
    assert "first of its lineage" in worse.reason


def test_no_labels_of_the_primary_objective_fail() -> None:
    empty = {"champion": None, "overall": {}, "surfaces": {}}
    assert not gates.better_than_champion(empty, CONFIG).passed
    assert not gates.enough_positives(empty, CONFIG).passed


@pytest.mark.parametrize(
    ("change", "half", "positives", "passes"),
    [
        (0.02, 0.01, 500, False),  # 2.5% worse for sure
        (0.02, 0.03, 500, True),  # perhaps not worse at all
        (0.004, 0.001, 500, True),  # within the rail
        (0.02, 0.01, 10, True),  # too few positives to judge
    ],
)
def test_guard_rail_of_a_surface(change: float, half: float, positives: int, passes: bool) -> None:
    bad = cell(change=change, half=half, positives=positives)
    gate = gates.no_cell_worse(metrics(cell(), bad), CONFIG)
    assert gate.passed is passes
    assert ("feed/click" in gate.reason) is not passes


@pytest.mark.parametrize(
    ("value", "passes"), [(1.0, True), (1.24, True), (1.26, False), (0.7, False)]
)
def test_calibration_overall_by_its_value(value: float, passes: bool) -> None:
    assert gates.calibrated(metrics(cell(calibration=value), cell()), CONFIG).passed is passes


@pytest.mark.parametrize(("value", "passes"), [(1.28, True), (1.4, False), (0.6, False)])
def test_calibration_of_a_surface_by_its_interval(value: float, passes: bool) -> None:
    assert gates.calibrated(metrics(cell(), cell(calibration=value)), CONFIG).passed is passes


@pytest.mark.parametrize(
    ("value", "half", "positives", "passes"),
    [
        (1.355, 0.35, 60, True),  # what 60 positives cannot tell from 1.0
        (1.355, 0.08, 60, False),  # the whole interval lies above the range
        (0.55, 0.3, 60, True),
        (0.55, 0.2, 60, False),
        (1.9, 0.2, 40, True),  # too few positives to judge
    ],
)
def test_calibration_of_conversions_by_their_interval(
    value: float, half: float, positives: int, passes: bool
) -> None:
    conversion = cell(positives=positives)
    conversion["challenger"]["calibration"] = triple(value, half)
    measured = metrics(cell())
    measured["overall"]["conversion"] = conversion
    gate = gates.calibrated(measured, CONFIG)
    assert gate.passed is passes
    assert ("overall/conversion" in gate.reason) is not passes


@pytest.mark.parametrize(
    ("results", "passes", "reason"),
    [
        (GOOD_CONTRACTS, True, "1 warnings"),
        ({**GOOD_CONTRACTS, "contracts": None}, False, "not checked: contracts"),
        ({**GOOD_CONTRACTS, "contracts": {"success": False}}, False, "critical failures"),
    ],
)
def test_contracts(results: dict[str, Any], passes: bool, reason: str) -> None:
    gate = gates.contracts_passed(results)
    assert gate.passed is passes
    assert reason in gate.reason


PARENT = Parent(day="2026-03-05", folder="runs/2026-03-05/x", cut_us=1, fingerprint="f")


def fake_run(mode: str, tmp_path: Path) -> Run:
    config = replace(preset("2026-03-06", "smoke"), promote=mode, parent=PARENT)
    return Run(folder=tmp_path / "runs" / config.day / "name", config=config)


@pytest.mark.parametrize(
    ("mode", "good", "loads", "decision", "mine"),
    [
        ("auto", True, True, "promoted", True),
        ("auto", False, True, "kept", False),
        ("never", True, True, "skipped", False),
        ("force", False, True, "forced", True),
        ("force", True, False, "kept", False),
    ],
)
def test_decisions(
    mode: str, good: bool, loads: bool, decision: str, mine: bool, tmp_path: Path
) -> None:
    run = fake_run(mode, tmp_path)
    measured = metrics(cell(change=-0.02 if good else 0.02))
    judged = judge(measured, GOOD_CONTRACTS, run.config)
    judged.append(gates.Gate(gate="golden_batch", passed=loads, reason="so it is"))
    found = decide(run, judged, "fp")
    assert found["decision"] == decision
    assert found["reasons"]
    assert len(found["gates"]) == 6
    assert found["champion"]["day"] == ("2026-03-06" if mine else "2026-03-05")
    if mine:
        assert found["champion"]["folder"] == "runs/2026-03-06/name"
        assert found["champion"]["fingerprint"] == "fp"
