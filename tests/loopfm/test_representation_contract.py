import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from pipeline.loopfm.contracts import representation_contract
from pipeline.run.codec import to_dict
from pipeline.run.errors import ContractError
from pipeline.run.manifest import Outcome, produce, write_json
from pipeline.run.paths import Run, open_run, run_folder
from pipeline.run.presets import preset
from pipeline.run.window import HOUR_US, day_begin_us

DAYS = ("2026-03-04", "2026-03-05")
CUT, ROWS = day_begin_us(DAYS[0]), 24


def make_run(home: Path) -> Run:
    """A run with a log of 24 impressions a day and a code for each."""
    config = preset(DAYS[1], "smoke")
    config = replace(config, model=replace(config.model, representation_dim=4))
    folder = run_folder(config, home)
    folder.mkdir(parents=True)
    write_json(folder / "run.json", to_dict(config))
    run = open_run(folder)
    log = [pl.DataFrame({"ts_us": times(day), "impression_id": ids(day)}) for day in DAYS]

    def mix(target: Path) -> Outcome:
        (target / "log").mkdir()
        pl.concat(log).write_parquet(target / "log" / "bucket=0.parquet")
        return Outcome(rows=2 * ROWS)

    def represent(target: Path) -> Outcome:
        index = {"epoch": "e1", "fm_cut_us": CUT, "days": dict.fromkeys(DAYS, "fingerprint")}
        write_json(target / "index.json", index)
        return Outcome(rows=2 * ROWS)

    for stage, build in (("mix", mix), ("represent", represent)):
        produce(run.output(stage), stage=stage, inputs={}, settings=[], build=build)
    for day in DAYS:
        write_day(run, day, vectors(day))
    return run


def times(day: str) -> np.ndarray:
    return day_begin_us(day) + np.arange(ROWS) * HOUR_US


def ids(day: str) -> np.ndarray:
    return np.arange(ROWS) + 1_000 * DAYS.index(day)


def vectors(day: str) -> pl.DataFrame:
    codes = np.random.default_rng(0).integers(1, 100, (ROWS, 4)).astype(np.int8)
    return pl.DataFrame(
        {
            "impression_id": ids(day),
            "user_id": np.arange(ROWS) % 5,
            "ad_id": np.arange(ROWS) % 3,
            "ts_us": times(day),
            "z": pl.Series(codes, dtype=pl.Array(pl.Int8, 4)),
            "logit_click": np.full(ROWS, -3.0, np.float32),
            "logit_conversion": np.full(ROWS, -6.0, np.float32),
            "epoch": ["e1"] * ROWS,
            "fm_cut_us": np.full(ROWS, CUT),
        }
    )


def write_day(run: Run, day: str, frame: pl.DataFrame) -> None:
    folder = run.lake("representations", "epoch=e1", f"day={day}")
    folder.mkdir(parents=True, exist_ok=True)
    frame.write_parquet(folder / "bucket=0.parquet")


def test_good_vectors_pass_and_pages_are_written(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    representation_contract(run)
    found = json.loads((run.output("representation_contract") / "result.json").read_text())
    assert found["success"] is True
    assert found["rows"] == 2 * ROWS
    assert [e for e in found["expectations"] if not e["success"]] == []
    assert run.inside("data_docs", "representation_contract", "index.html").is_file()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda f: f.with_columns(ts_us=pl.lit(CUT - 1)), "knows its own label"),
        (lambda f: f.with_columns(epoch=pl.lit("e0")), "two snapshots"),
        (lambda f: f.head(20), "coverage"),
        (lambda f: pl.concat([f, f.head(1)]), "duplicates"),
        (lambda f: f.with_columns(logit_click=pl.lit(float("nan"))), "distil this logit"),
    ],
    ids=["leak", "epoch", "coverage", "duplicates", "nan"],
)
def test_a_planted_violation_stops_the_chain(
    change: Callable[[pl.DataFrame], pl.DataFrame], reason: str, tmp_path: Path
) -> None:
    run = make_run(tmp_path)
    write_day(run, DAYS[1], change(vectors(DAYS[1])))
    with pytest.raises(ContractError, match=reason):
        representation_contract(run)
    assert run.inside("contract_failures", "representation_contract.json").is_file()
