from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.loopfm.epoch import Epoch, refuse_future
from pipeline.loopfm.lake import Representations, read_representations, write_bucket
from pipeline.loopfm.nibbles import codebook
from pipeline.run.errors import ContractError, DataError
from pipeline.run.manifest import write_json
from pipeline.run.paths import Run
from pipeline.run.presets import preset

EPOCH = Epoch(id="e1", fm_cut_us=100, folder=Path("unused"))


def rows(ts_us: list[int]) -> Representations:
    count = len(ts_us)
    return Representations(
        impression_N=np.arange(count),
        user_N=np.arange(count),
        ad_N=np.arange(count),
        ts_us_N=np.array(ts_us, dtype=np.int64),
        z_Nd=np.ones((count, 2), dtype=np.int8),
        logits_NK=np.zeros((count, 1), dtype=np.float32),
    )


def test_a_model_that_saw_the_future_cannot_write(tmp_path: Path) -> None:
    write_bucket(tmp_path / "good.parquet", rows([100, 150]), EPOCH, ["click"])
    with pytest.raises(ContractError, match=r"99 us come from epoch e1.*leak"):
        write_bucket(tmp_path / "bad.parquet", rows([150, 99]), EPOCH, ["click"])
    assert not (tmp_path / "bad.parquet").exists()


def test_the_cut_itself_is_not_the_future() -> None:
    refuse_future(EPOCH, 100, "vectors")


def test_an_empty_bucket_has_the_same_columns(tmp_path: Path) -> None:
    write_bucket(tmp_path / "a.parquet", rows([]), EPOCH, ["click"])
    write_bucket(tmp_path / "b.parquet", rows([100]), EPOCH, ["click"])
    assert pq.read_schema(tmp_path / "a.parquet").equals(pq.read_schema(tmp_path / "b.parquet"))


DAYS = ("2026-03-04", "2026-03-05")


def lake(home: Path) -> Run:
    """A run whose index names two days, with vectors of both."""
    config = preset(DAYS[1], "smoke")
    run = Run(folder=home / "runs" / DAYS[1] / "r", config=config)
    run.output("represent").mkdir(parents=True)
    write_json(
        run.output("represent") / "index.json",
        {"epoch": "e1", "fm_cut_us": 100, "days": dict.fromkeys(DAYS, "print")},
    )
    for day in DAYS:
        folder = run.lake("representations", "epoch=e1", f"day={day}")
        folder.mkdir(parents=True)
        write_bucket(folder / "bucket=0.parquet", two_logits(), EPOCH, ["click", "conversion"])
    return run


def two_logits() -> Representations:
    few = rows([100, 150, 160])
    return replace(few, logits_NK=np.zeros((3, 2), dtype=np.float32))


def a_file(run: Run) -> Path:
    return run.lake("representations", "epoch=e1", f"day={DAYS[1]}", "bucket=0.parquet")


def test_all_days_are_read(tmp_path: Path) -> None:
    found = read_representations(lake(tmp_path))
    assert len(found) == 6
    assert found.z_Nd.dtype == np.int8


def test_a_missing_day_is_an_error(tmp_path: Path) -> None:
    run = lake(tmp_path)
    a_file(run).unlink()
    with pytest.raises(DataError, match=r"day=2026-03-05 holds no vectors, though the index"):
        read_representations(run)


def test_a_truncated_file_is_an_error(tmp_path: Path) -> None:
    run = lake(tmp_path)
    a_file(run).write_bytes(a_file(run).read_bytes()[:200])
    with pytest.raises(DataError, match=r"bucket=0.parquet cannot be read"):
        read_representations(run)


def test_vectors_of_another_epoch_are_an_error(tmp_path: Path) -> None:
    run = lake(tmp_path)
    other = replace(EPOCH, id="e0")
    write_bucket(a_file(run), two_logits(), other, ["click", "conversion"])
    with pytest.raises(ContractError, match=r"epochs \['e0'\] lie among those of e1"):
        read_representations(run)


def test_a_planted_leak_is_caught_when_it_is_read(tmp_path: Path) -> None:
    run = lake(tmp_path)
    early = replace(EPOCH, fm_cut_us=90)
    few = replace(two_logits(), ts_us_N=np.array([95, 150, 160]))
    write_bucket(a_file(run), few, early, ["click", "conversion"])
    table = pq.read_table(a_file(run))
    place = table.schema.get_field_index("fm_cut_us")
    lied = table.set_column(place, "fm_cut_us", pa.array([100, 100, 100]))
    pq.write_table(lied, a_file(run))
    with pytest.raises(ContractError, match="1 representations of epoch e1 are older than"):
        read_representations(run)


@pytest.mark.parametrize("four_bits", [False, True])
def test_a_broken_code_is_never_written(four_bits: bool, tmp_path: Path) -> None:
    values = codebook(np.zeros((1, 2), np.float32), "int4") if four_bits else None
    few = replace(rows([100, 150]), z_Nd=np.array([[0.5, 0.1], [np.nan, 0.2]], np.float32))
    with pytest.raises(DataError, match=r"1 of 2 representations of epoch e1.*impression 1;"):
        write_bucket(tmp_path / "a.parquet", few, EPOCH, ["click"], values)
    assert not (tmp_path / "a.parquet").exists()


@pytest.mark.parametrize("kind", ["int4", "kmeans4"])
def test_four_bits_come_back_from_the_lake(kind: Any, tmp_path: Path) -> None:
    run = lake(tmp_path)
    z = np.tanh(np.random.default_rng(0).normal(size=(3, 5))).astype(np.float32)
    values = codebook(z, kind)
    few = replace(two_logits(), z_Nd=z)
    for day in DAYS:
        path = run.lake("representations", "epoch=e1", f"day={day}", "bucket=0.parquet")
        write_bucket(path, few, EPOCH, ["click", "conversion"], values)
    found = read_representations(run).z_Nd
    assert found.shape == (6, 5)
    # from -1 to 7/8 in steps of 1/8; sixteen centres fit fifteen codes exactly
    assert np.abs(found[:3] - z).max() <= (0.125 if kind == "int4" else 0.05)
