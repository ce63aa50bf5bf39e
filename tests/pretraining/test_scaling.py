"""The ladder on a tiny world: kill -9, resumption, results, the fit; sizes; learning rates."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.evaluation.report import render
from pipeline.mixing.synthetic_scaling import TERMS
from pipeline.pretraining.scaling.command import planned, shortened
from pipeline.pretraining.scaling.rates import rates_of
from pipeline.pretraining.scaling.sizing import flops, ladder_of, sized
from pipeline.run.errors import ConfigError, DataError
from pipeline.run.manifest import Outcome, produce, write_json
from pipeline.run.paths import Run, open_run
from pipeline.run.presets import preset
from pipeline.run.scaling import Point, Rates, ScalingConfig, point_of, points, trials

HERE = Path(__file__).parent
CONFIG = preset("2026-11-29", "base", "scaling")
LENGTHS = {"organic": np.full(8, 30)}


@pytest.fixture(scope="module")
def ladder(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    home = tmp_path_factory.mktemp("home")
    done = subprocess.run(
        [sys.executable, str(HERE / "scaling_worker.py"), str(home)],
        env={**os.environ, "PYTHONPATH": str(HERE.parents[1])},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads((home / "result.json").read_text())
    return found


@pytest.fixture(scope="module")
def run(ladder: dict[str, Any]) -> Run:
    return open_run(ladder["folder"])


def test_a_killed_ladder_goes_on_where_it_was(ladder: dict[str, Any], run: Run) -> None:
    assert ladder["statuses"] == [0, -signal.SIGKILL, 0, 0, 0, 0]
    killed, finished = ladder["after_kill"], ladder["after_all"]
    assert len(killed) == 4, "the trials were over, and no half of a point is to be seen"
    assert killed.items() <= finished.items(), "what was finished is not trained again"
    assert len(finished) == len(planned(run)) == 8


def test_a_finished_ladder_is_left_alone(ladder: dict[str, Any]) -> None:
    again = {n: t for n, t in ladder["after_rerun"].items() if "kunlun-r0-hard-s0" not in n}
    assert again.items() <= ladder["after_all"].items()


def test_a_point_has_the_same_bytes_when_it_is_trained_again(ladder: dict[str, Any]) -> None:
    assert ladder["fingerprints"][0] == ladder["fingerprints"][1]


def test_events_tell_their_kinds_apart(ladder: dict[str, Any]) -> None:
    assert len(ladder["actions"]) == 3
    assert ladder["longest"] == 32


def test_a_point_says_what_it_is_and_what_it_learned(run: Run) -> None:
    found = json.loads(
        (run.output("scaling_point", "kunlun-r1-hard-s0") / "result.json").read_text()
    )
    assert set(found["parts"]) == set(TERMS)
    assert found["mflop"] == pytest.approx(0.3, rel=0.15)
    assert found["ne"]["bayes"] < found["ne"]["truth"] < 1.2
    assert found["rows"] > 500
    assert found["rates"] in ([3e-3, 3e-2], [1e-2, 1e-1])
    trial = run.output("scaling_tune", "kunlun-r0-hard-t1") / "result.json"
    assert "blocks" not in json.loads(trial.read_text())


def test_the_fit_and_the_report_have_every_family(run: Run) -> None:
    fit = json.loads((run.output("scaling_fit") / "fit.json").read_text())
    assert fit["missing"] == []
    families = fit["labels"]["hard"]["families"]
    assert set(families) == {"kunlun", "interformer"}
    assert all(len(f["rungs"]) == 2 and "eta" in f for f in families.values())
    assert "gain_pct" in fit["labels"]["hard"]["against"]["interformer"]
    page = render(run)
    assert '<section id="scaling">' in page
    assert "interformer" in page


@pytest.mark.parametrize("arch", ScalingConfig().archs)
@pytest.mark.parametrize("rung", range(5))
def test_every_family_reaches_every_rung(arch: str, rung: int) -> None:
    config = sized(CONFIG, Point(arch=arch, rung=rung, labels="soft"), LENGTHS)
    wanted = 1e6 * ladder_of(CONFIG).mflops[rung]
    assert flops(config, LENGTHS) == pytest.approx(wanted, rel=0.15)
    assert config.model.arch == arch
    assert config.model.embedding_dim == CONFIG.model.embedding_dim


def test_the_ladder_spans_what_it_should() -> None:
    mflops = ladder_of(CONFIG).mflops
    assert len(mflops) >= 5
    assert np.log10(mflops[-1] / mflops[0]) >= 1.3
    assert mflops[-1] == 12.0


def test_a_rung_out_of_reach_is_refused() -> None:
    config = replace(CONFIG, scaling=replace(ladder_of(CONFIG), mflops=(0.001,), tuned_rungs=(0,)))
    with pytest.raises(ConfigError, match=r"scaling\.mflops of rung 0 must be within reach of kun"):
        sized(config, Point(arch="kunlun", rung=0, labels="soft"), LENGTHS)
    with pytest.raises(ConfigError, match="has no ladder; resolve with --source scaling"):
        ladder_of(preset("2026-11-29", "smoke"))


def test_units_name_their_points() -> None:
    for point in (*points(ladder_of(CONFIG)), *trials(ladder_of(CONFIG))):
        assert point_of(point.unit) == point
    with pytest.raises(ConfigError, match="unit must be like"):
        point_of("kunlun-2-soft-s0")


def test_every_family_has_as_many_trials() -> None:
    counts = [
        sum(t.arch == arch and t.labels == labels for t in trials(ladder_of(CONFIG)))
        for arch in ladder_of(CONFIG).archs
        for labels in ladder_of(CONFIG).labels
    ]
    assert len(set(counts)) == 1
    assert counts[0] >= 2 * len(ScalingConfig().trials)


def test_quick_is_two_rungs_and_one_seed() -> None:
    quick = ladder_of(shortened(CONFIG))
    assert len(quick.mflops) == 2
    assert trials(quick) == ()
    assert len(points(quick)) == 2 * len(quick.archs) * len(quick.labels)


def rated(home: Path, ladder: ScalingConfig) -> Run:
    return Run(folder=home, config=replace(CONFIG, scaling=ladder))


def test_the_trial_of_the_best_forecast_gives_the_rates(tmp_path: Path) -> None:
    ladder = ScalingConfig(archs=("kunlun",), labels=("soft",), tuned_rungs=(0, 2))
    run = rated(tmp_path, ladder)
    wanted = Point(arch="kunlun", rung=1, labels="soft")
    with pytest.raises(DataError, match="has no finished output"):
        rates_of(run, wanted)
    forecasts = {0: [0.8, 0.9, None, 0.85], 2: [0.9, 0.8, 0.7, None]}
    for point in trials(ladder):
        value = {"forecast_ne": forecasts[point.rung][point.trial or 0]}
        _publish(run, point.unit, value)
    assert rates_of(run, replace(wanted, rung=0)) == (3e-3, 3e-2)
    assert rates_of(run, replace(wanted, rung=2)) == (1e-2, 3e-2)
    assert rates_of(run, replace(wanted, rung=4)) == (1e-2, 3e-2)
    dense, sparse = rates_of(run, wanted)
    assert 3e-3 < dense < 1e-2
    assert sparse == 3e-2
    assert rates_of(run, replace(wanted, trial=3)) == (3e-3, 1e-1)


def test_known_rates_are_taken_without_trials(tmp_path: Path) -> None:
    known = Rates(arch="kunlun", labels="soft", rung=0, dense=2e-3, sparse=5e-2)
    ladder = ScalingConfig(archs=("kunlun",), labels=("soft",), rates=(known,))
    assert trials(ladder) == ()
    point = Point(arch="kunlun", rung=3, labels="soft")
    assert rates_of(rated(tmp_path, ladder), point) == (2e-3, 5e-2)


def _publish(run: Run, unit: str, value: dict[str, Any]) -> None:
    def build(folder: Path) -> Outcome:
        write_json(folder / "result.json", value)
        return Outcome(rows=1)

    produce(
        run.output("scaling_tune", unit),
        stage="scaling_tune",
        unit=unit,
        inputs={},
        settings=[],
        build=build,
    )
