import json
from pathlib import Path

import polars as pl
import pytest
from plane_world import LAST, landed_run, run_plane

from pipeline.mixing.canonical import bucket_file, partition_folder
from pipeline.mixing.contracts import contracts, mixture_contract
from pipeline.run.errors import ContractError
from pipeline.run.paths import Run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = landed_run(tmp_path_factory.mktemp("home"))
    run_plane(run)
    return run


def result(run: Run, stage: str) -> dict:
    return json.loads((run.output(stage) / "result.json").read_text())


def test_ingested_impressions_and_their_mixture_pass(run: Run) -> None:
    for stage, function in (("contracts", contracts), ("mixture_contract", mixture_contract)):
        function(run)
        found = result(run, stage)
        assert found["success"] is True
        assert len(found["expectations"]) > 30
        assert found["rows"] > 0
        assert run.inside("data_docs", stage, "index.html").is_file()
        assert list(run.inside("data_docs", stage).glob("validations/**/*.html"))
    assert "mixture_contract/index.html" in run.inside("data_docs", "index.html").read_text()


def test_a_second_check_gives_the_same_bytes(run: Run) -> None:
    before = contracts(run)
    (run.output("contracts") / "result.json").unlink()
    assert contracts(run).fingerprint == before.fingerprint


def test_bad_rows_behind_ingest_stop_the_chain(run: Run) -> None:
    path = bucket_file(partition_folder(run, "impressions", LAST, run.config.surfaces[0]), 0)
    good = path.read_bytes()
    frame = pl.read_parquet(path)
    spoiled = pl.when(pl.int_range(pl.len()) < 2).then(-5).otherwise("ad_id").alias("ad_id")
    frame.with_columns(spoiled).write_parquet(path)
    (run.output("contracts") / "result.json").unlink(missing_ok=True)
    try:
        with pytest.raises(ContractError, match=r"negative_ad_id breaks .* first -5, -5"):
            contracts(run)
    finally:
        path.write_bytes(good)
    failures = json.loads(run.inside("contract_failures", "contracts.json").read_text())
    assert failures["success"] is False


def test_a_holdout_label_in_training_stops_the_chain(run: Run) -> None:
    train, holdout = (bucket_file(run.output("mix") / s, 0) for s in ("train", "holdout"))
    good = train.read_bytes()
    mixed = pl.concat([pl.read_parquet(train), pl.read_parquet(holdout).head(1)])
    mixed.write_parquet(train)
    (run.output("mixture_contract") / "result.json").unlink(missing_ok=True)
    try:
        with pytest.raises(ContractError, match="train_label_outside"):
            mixture_contract(run)
    finally:
        train.write_bytes(good)


def test_a_missing_column_is_named(run: Run, tmp_path: Path) -> None:
    path = bucket_file(run.output("mix") / "train", 0)
    good = path.read_bytes()
    pl.read_parquet(path).drop("label_us").write_parquet(path)
    (run.output("mixture_contract") / "result.json").unlink(missing_ok=True)
    try:
        with pytest.raises(ContractError, match="mix/train lacks the columns label_us"):
            mixture_contract(run)
    finally:
        path.write_bytes(good)
