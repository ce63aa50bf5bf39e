import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from eval_world import DAY, NEXT, make_run, parent_of, publish_model, run_to_mix, small_config

from pipeline.evaluation import metrics
from pipeline.evaluation.evaluate import evaluate
from pipeline.evaluation.promote import golden_batch, promote
from pipeline.mixing.loader import Loader
from pipeline.run.errors import DataError
from pipeline.run.manifest import Outcome, produce, write_json
from pipeline.run.paths import Run, open_run
from pipeline.run.window import window_of


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Run]:
    """A first day without a champion and a second one that starts from it, both evaluated."""
    home = tmp_path_factory.mktemp("home")
    first = make_run(home, small_config(DAY))
    run_to_mix(first)
    publish_model(first, seed=0)
    evaluate(first)
    second = make_run(home, small_config(NEXT, parent_of(first)))
    run_to_mix(second)
    publish_model(second, seed=1)
    evaluate(second)
    return first, second


def read(run: Run, *parts: str) -> dict:
    return json.loads(run.inside(*parts).read_text())


def test_every_holdout_row_is_scored_once_in_loader_order(runs: tuple[Run, Run]) -> None:
    run, _ = runs
    frame = pl.read_parquet(run.output("evaluate") / "predictions.parquet")
    loader = Loader(run, "holdout", batch_size=100, order="none")
    assert frame["impression_id"].to_list() == loader.columns["impression_id"].tolist()
    assert frame["p_click"].is_between(0, 1).all()
    assert set(frame["surface"].unique()) <= set(run.config.surfaces)


def test_metrics_are_those_of_the_predictions(runs: tuple[Run, Run]) -> None:
    run, _ = runs
    frame = pl.read_parquet(run.output("evaluate") / "predictions.parquet")
    found = read(run, "evaluate", "metrics.json")
    for surface, objective in (("feed", "click"), ("reels", "click"), ("overall", "conversion")):
        rows = frame.filter(pl.col(f"m_{objective}"))
        if surface != "overall":
            rows = rows.filter(pl.col("surface") == surface)
        cells = found["overall"] if surface == "overall" else found["surfaces"][surface]
        y, p = rows[f"y_{objective}"].to_numpy(), rows[f"p_{objective}"].to_numpy()
        assert cells[objective]["rows"] == len(rows)
        assert cells[objective]["positives"] == int(y.sum())
        if 0 < y.sum() < len(y):
            ne = cells[objective]["challenger"]["ne"]
            assert ne["value"] == pytest.approx(metrics.normalized_entropy(y, p))
            assert ne["low"] < ne["value"] < ne["high"]


def test_conversions_are_scored_where_mature_and_clicks_where_clicked(
    runs: tuple[Run, Run],
) -> None:
    run, _ = runs
    frame = pl.read_parquet(run.output("evaluate") / "predictions.parquet")
    window = window_of(run.config)
    clicks = frame.filter(pl.col("m_click"))
    mature = frame.filter(pl.col("m_conversion"))
    delay = 24 * 3_600_000_000
    assert clicks["ts_us"].is_between(window.cut, window.day_end, closed="left").all()
    assert mature["ts_us"].is_between(window.cut - delay, window.day_end - delay).all()
    assert len(clicks) > 0
    assert len(mature) > 0


def test_bayes_is_known_and_not_beaten_on_the_truth(runs: tuple[Run, Run]) -> None:
    truth = read(runs[0], "evaluate", "metrics.json")["overall"]["click"]["truth"]["probability"]
    assert truth["bayes_ne"]["value"] < 1
    assert truth["challenger"]["ne"]["value"] > truth["bayes_ne"]["value"]
    assert truth["challenger"]["closed"]["value"] < 1


def test_the_champion_is_scored_on_the_same_rows_by_its_own_model(runs: tuple[Run, Run]) -> None:
    first, second = runs
    frame = pl.read_parquet(second.output("evaluate") / "predictions.parquet")
    assert not np.allclose(frame["c_click"], frame["p_click"])
    found = read(second, "evaluate", "metrics.json")
    cell = found["overall"]["click"]
    assert found["champion"]["day"] == first.config.day
    gap = cell["challenger"]["ne"]["value"] - cell["champion"]["ne"]["value"]
    assert cell["difference"]["ne"]["value"] == pytest.approx(gap)
    assert [row["surface"] for row in found["rows"]][:1] == ["overall"]


def test_the_same_champion_gives_a_difference_of_zero(runs: tuple[Run, Run]) -> None:
    first, _ = runs
    config = replace(first.config, parent=parent_of(first), warm_start=False)
    twin = Run(folder=first.folder, config=config)
    shutil.move(first.output("evaluate"), first.inside("kept"))
    try:
        evaluate(twin)
        change = read(twin, "evaluate", "metrics.json")["overall"]["click"]["difference"]["ne"]
    finally:
        shutil.rmtree(first.output("evaluate"))
        shutil.move(first.inside("kept"), first.output("evaluate"))
    assert change == {"value": 0.0, "low": 0.0, "high": 0.0}


def test_evaluate_twice_is_the_same_and_does_no_work(runs: tuple[Run, Run]) -> None:
    run, _ = runs
    before = evaluate(run)
    shutil.rmtree(run.output("evaluate"))
    assert evaluate(run).fingerprint == before.fingerprint


def test_a_missing_champion_names_its_folder(runs: tuple[Run, Run]) -> None:
    _, second = runs
    gone = replace(second.config.parent, folder="runs/2020-01-01/gone")  # type: ignore[type-var]
    run = Run(folder=second.folder, config=replace(second.config, parent=gone))
    with pytest.raises(DataError, match="2020-01-01/gone"):
        evaluate(run)


def publish_contracts(run: Run) -> None:
    for name in ("contracts", "mixture_contract"):

        def build(folder: Path) -> Outcome:
            write_json(folder / "result.json", {"success": True, "expectations": []})
            return Outcome(rows=1)

        produce(run.output(name), stage=name, inputs={}, settings=[], build=build)


def test_promote_scores_the_golden_batch_again_and_gives_reasons(runs: tuple[Run, Run]) -> None:
    run, _ = runs
    publish_contracts(run)
    promote(run)
    found = read(run, "promote", "decision.json")
    gates = {g["gate"]: g for g in found["gates"]}
    assert gates["golden_batch"]["passed"]
    assert gates["contracts_passed"]["passed"]
    assert found["decision"] in {"promoted", "kept"}
    assert found["reasons"]
    assert (found["champion"] is None) == (found["decision"] == "kept")


def test_forced_promotion_names_this_run_as_champion(runs: tuple[Run, Run]) -> None:
    _, second = runs
    publish_contracts(second)
    run = Run(folder=second.folder, config=replace(second.config, promote="force"))
    promote(run)
    found = read(run, "promote", "decision.json")
    assert found["decision"] == "forced"
    expected = parent_of(second)
    assert found["champion"] == {
        "day": expected.day,
        "folder": expected.folder,
        "cut_us": expected.cut_us,
        "fingerprint": expected.fingerprint,
    }
    assert open_run(second.home / found["champion"]["folder"]).config.day == NEXT


def test_other_weights_than_evaluated_fail_the_golden_batch(runs: tuple[Run, Run]) -> None:
    first, second = runs
    model = second.output("pretrain") / "model"
    shutil.move(model, second.inside("kept_model"))
    try:
        assert "does not load" in golden_batch(second).reason
        shutil.copytree(first.output("pretrain") / "model", model)
        gate = golden_batch(second)
    finally:
        shutil.rmtree(model, ignore_errors=True)
        shutil.move(second.inside("kept_model"), model)
    assert not gate.passed
    assert "apart" in gate.reason
