import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from pipeline.evaluation.students import decide, evaluate_students, promote_students
from pipeline.run.codec import to_dict
from pipeline.run.config import RunConfig
from pipeline.run.errors import DataError
from pipeline.run.manifest import Outcome, produce, write_json
from pipeline.run.paths import Run, open_run, run_folder
from pipeline.run.presets import preset
from pipeline.run.window import day_begin_us

ARMS = {"none": 0.1, "kd": 0.2, "loopfm": 0.4, "kd_loopfm": 0.6}


def config_of(day: str, **changes: Any) -> RunConfig:
    config = preset(day, "smoke")
    few = replace(config.evaluation, bootstrap_draws=40)
    return replace(config, evaluation=few, **changes)


def make_run(home: Path, day: str, help_: float = 1.0, **changes: Any) -> Run:
    """A run whose transfer outputs are made by hand; `help_` scales what the arms know."""
    config = config_of(day, **changes)
    folder = run_folder(config, home)
    folder.mkdir(parents=True)
    write_json(folder / "run.json", to_dict(config))
    run = open_run(folder)
    truth = []
    for place, surface in enumerate(config.surfaces):
        frame, true = predictions(day, place, help_)
        truth.append(true)

        def build(target: Path, frame: pl.DataFrame = frame) -> Outcome:
            frame.write_parquet(target / "predictions.parquet")
            return Outcome(rows=len(frame))

        produce(
            run.output("transfer", surface), stage="transfer", unit=surface, inputs={},
            settings=[], build=build,
        )  # fmt: skip
    path = run.lake("truth", f"day={day}")
    path.mkdir(parents=True, exist_ok=True)
    pl.concat(truth).write_parquet(path / "bucket=0.parquet")
    write_json_file(run.inside("promote", "decision.json"), {"decision": "kept", "champion": None})
    return run


def write_json_file(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, value)


def predictions(day: str, place: int, help_: float) -> tuple[pl.DataFrame, pl.DataFrame]:
    rng = np.random.default_rng(place)
    rows = 2_000
    logit_N = rng.normal(-1, 1.5, rows)
    true_N = 1 / (1 + np.exp(-logit_N))
    ids_N = np.arange(rows) + 10_000 * place

    def seen(share: float) -> np.ndarray:
        return 1 / (1 + np.exp(-(-1 + share * help_ * (logit_N + 1))))

    columns: dict[str, Any] = {
        "impression_id": ids_N,
        "user_id": rng.integers(0, 200, rows),
        "ts_us": np.full(rows, day_begin_us(day) + 5),
        "p_fm_click": seen(0.9),
        "p_fm_conversion": seen(0.9) / 50,
        "y_click": (rng.uniform(size=rows) < true_N).astype(np.int8),
        "m_click": np.ones(rows, bool),
        "y_conversion": np.zeros(rows, np.int8),
        "m_conversion": np.zeros(rows, bool),
    }
    for arm, share in ARMS.items():
        columns[f"p_{arm}_s0_click"] = seen(share)
        columns[f"p_{arm}_s0_conversion"] = seen(share) / 50
    truth = pl.DataFrame({"impression_id": ids_N, "p_click": true_N, "p_conversion": true_N / 50})
    return pl.DataFrame(columns), truth


def read(run: Run, *parts: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run.inside(*parts).read_text())
    return found


def test_the_table_has_every_surface_objective_and_arm_against_labels_and_truth(
    tmp_path: Path,
) -> None:
    run = make_run(tmp_path, "2026-03-05")
    evaluate_students(run)
    table = read(run, "evaluate_students", "table.json")
    for kind in ("rows", "truth"):
        names = {(r["surface"], r["objective"], r["arm"]) for r in table[kind]}
        assert names == {
            (s, o, a)
            for s in run.config.surfaces
            for o in ("click", "conversion")
            for a in (*ARMS, "fm")
        }
        ratios = {r["arm"]: r["tr"][0] for r in table[kind] if r["tr"] and r["surface"] == "feed"}
        assert 0 < ratios["kd"] < ratios["loopfm"] < ratios["kd_loopfm"] < 1.2
    empty = [r for r in table["rows"] if r["objective"] == "conversion"]
    assert all(r["ne"] == [None, None, None] for r in empty)


def test_twice_is_the_same_and_needs_every_surface(tmp_path: Path) -> None:
    run = make_run(tmp_path, "2026-03-05")
    first = evaluate_students(run)
    (run.output("evaluate_students") / "table.json").unlink()
    assert evaluate_students(run).fingerprint == first.fingerprint
    (run.output("transfer", "reels") / "manifest.json").unlink()
    with pytest.raises(DataError, match="reels"):
        evaluate_students(run)


def test_missing_truth_of_planted_rows_is_an_error(tmp_path: Path) -> None:
    run = make_run(tmp_path, "2026-03-05")
    path = run.lake("truth", "day=2026-03-05", "bucket=0.parquet")
    pl.read_parquet(path).filter(pl.col("impression_id") != 7).write_parquet(path)
    with pytest.raises(DataError, match=r"1 impressions have no planted truth, first \[7\]"):
        evaluate_students(run)


def test_the_first_students_serve_and_a_day_that_learned_nothing_does_not(tmp_path: Path) -> None:
    first = make_run(tmp_path, "2026-03-05")
    evaluate_students(first)
    promote_students(first)
    found = read(first, "promote_students", "decision.json")["surfaces"]
    assert {d["decision"] for d in found.values()} == {"promoted"}
    assert found["feed"]["champion"]["folder"].endswith("transfer/feed")

    second = make_run(tmp_path, "2026-03-06", help_=0.2)
    evaluate_students(second)
    promote_students(second)
    found = read(second, "promote_students", "decision.json")["surfaces"]
    assert {d["decision"] for d in found.values()} == {"kept"}
    assert found["feed"]["champion"]["day"] == "2026-03-05"
    assert "falls behind the champion" in " ".join(found["feed"]["reasons"])


def row(gain: float, calibration: float = 1.0) -> dict[str, Any]:
    return {
        "surface": "feed",
        "objective": "click",
        "arm": "kd_loopfm",
        "ne": [0.8, 0.79, 0.81],
        "gain": [gain, gain - 0.01, gain + 0.01],
        "calibration": [calibration, calibration - 0.05, calibration + 0.05],
    }


@pytest.mark.parametrize(
    ("rows", "decision", "reason"),
    [
        ([row(0.05)], "promoted", "first of its lineage"),
        ([row(-0.01)], "kept", "no better than the student without transfer"),
        ([row(0.05, calibration=1.5)], "kept", "calibration"),
        ([], "kept", "was not trained"),
    ],
)
def test_decisions_of_one_surface(
    rows: list[dict[str, Any]], decision: str, reason: str, tmp_path: Path
) -> None:
    config = config_of("2026-03-05")
    run = Run(folder=tmp_path / "runs" / "d" / "r", config=config)

    def build(target: Path) -> Outcome:
        return Outcome(rows=0)

    produce(run.output("transfer", "feed"), stage="t", inputs={}, settings=[], build=build)
    found = decide(run, "feed", rows, None)
    assert found["decision"] == decision
    assert reason in " ".join(found["reasons"])
    assert (found["champion"] is not None) == (decision == "promoted")


def test_never_skips(tmp_path: Path) -> None:
    run = Run(folder=tmp_path / "runs" / "d" / "r", config=config_of("2026-03-05", promote="never"))
    assert (
        decide(run, "feed", [row(0.05)], {"day": "d", "gain": [0, 0, 0]})["decision"] == "skipped"
    )
