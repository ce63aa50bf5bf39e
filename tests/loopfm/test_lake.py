from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipeline.loopfm.epoch import Epoch, refuse_future
from pipeline.loopfm.lake import Representations, write_bucket
from pipeline.run.errors import ContractError

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
    import pyarrow.parquet as pq

    write_bucket(tmp_path / "a.parquet", rows([]), EPOCH, ["click"])
    write_bucket(tmp_path / "b.parquet", rows([100]), EPOCH, ["click"])
    assert pq.read_schema(tmp_path / "a.parquet").equals(pq.read_schema(tmp_path / "b.parquet"))
