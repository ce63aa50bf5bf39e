"""Ten planted days at the default size: eight in the first run, then one warm-started run a day."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.run.paths import open_run
from pipeline.run.runs import CHAIN, units_of

ROOT = Path(__file__).resolve().parents[2]
DAYS = ("2026-11-27", "2026-11-28", "2026-11-29")
STAGES = tuple(s for s in CHAIN["foundation_daily"] if s not in ("track", "report"))


def pipeline(home: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pipeline", *arguments],
        cwd=ROOT,
        env=os.environ | {"HEADWATER_HOME": str(home), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip().split("\n")[-1]


def run_day(home: Path, day: str) -> dict[str, Any]:
    """Metrics and decision of one day, run by hand as Airflow would."""
    run = pipeline(home, "resolve", "--day", day, "--size", "small", "--source", "planted")
    for stage in STAGES:
        for unit in units_of(open_run(run), stage):
            pipeline(home, stage, "--run", run, "--unit", unit)
    folder = Path(run)
    return {
        "metrics": json.loads((folder / "evaluate/metrics.json").read_text()),
        "decision": json.loads((folder / "promote/decision.json").read_text()),
        "config": json.loads((folder / "run.json").read_text()),
    }


@pytest.mark.long
def test_the_model_closes_half_of_the_distance_to_bayes(tmp_path: Path) -> None:
    results = [run_day(tmp_path, day) for day in DAYS]
    for result in results:
        surfaces = result["metrics"]["surfaces"]
        for surface in ("feed", "reels", "stories"):
            assert surfaces[surface]["click"]["challenger"]["ne"]["value"] < 1
        assert result["decision"]["reasons"]
    closed = [
        r["metrics"]["overall"]["click"]["truth"]["probability"]["challenger"]["closed"]["value"]
        for r in results
    ]
    assert closed[0] >= 0.35
    assert closed[-1] >= 0.50
    assert results[0]["config"]["parent"] is None
    assert results[1]["config"]["parent"]["day"] == DAYS[0]
