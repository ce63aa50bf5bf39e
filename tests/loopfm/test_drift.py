from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipeline.loopfm.drift import drift_between, drift_of
from pipeline.loopfm.epoch import Epoch
from pipeline.loopfm.lake import Representations, write_bucket
from pipeline.run.errors import ConfigError, DataError
from pipeline.run.manifest import Outcome, produce, write_json
from pipeline.run.paths import Run
from pipeline.run.presets import preset

DAY = "2026-03-05"


def vectors(rows: int = 400, width: int = 6, seed: int = 0) -> np.ndarray:
    return np.tanh(np.random.default_rng(seed).normal(size=(rows, width)))


def test_the_same_vectors_do_not_drift() -> None:
    found = drift_between(vectors(), vectors())
    assert found.centroid_shift == 0
    assert found.same == 1
    assert found.aligned == pytest.approx(1)


def test_a_turned_space_is_aligned_but_not_the_same() -> None:
    turn, _ = np.linalg.qr(np.random.default_rng(1).normal(size=(6, 6)))
    found = drift_between(vectors(), vectors() @ turn + 2.0)
    assert found.same < 0
    assert found.aligned == pytest.approx(1)
    assert found.centroid_shift > 1


def test_another_space_is_neither() -> None:
    found = drift_between(vectors(), vectors(seed=1))
    assert found.aligned < 0.05


def test_few_rows_are_an_error() -> None:
    with pytest.raises(DataError, match="at least 100 impressions that both epochs have, got 40"):
        drift_between(vectors(40), vectors(40))


def test_epochs_of_a_lake_are_paired_by_impression(tmp_path: Path) -> None:
    run = Run(folder=tmp_path / "runs" / DAY / "r", config=preset(DAY, "smoke"))
    z = vectors().astype(np.float32)
    order = np.random.default_rng(2).permutation(400)
    for name, kept in (("e1", order[:300]), ("e2", np.arange(400))):
        folder = run.lake("representations", f"epoch={name}", f"day={DAY}")
        folder.mkdir(parents=True)
        epoch = Epoch(id=name, fm_cut_us=0, folder=folder)
        write_bucket(folder / "bucket=0.parquet", rows(z).take(kept), epoch, ["click"])

    def build(folder: Path) -> Outcome:
        write_json(folder / "index.json", {"epoch": "e2", "fm_cut_us": 0, "days": {DAY: "p"}})
        return Outcome(rows=400)

    produce(run.output("represent"), stage="represent", inputs={}, settings=[], build=build)
    found = drift_of(run, "e1")
    assert (found.rows, found.same) == (300, 1.0)
    with pytest.raises(ConfigError, match="is the run's own"):
        drift_of(run, "e2")
    with pytest.raises(DataError, match=r"'e0' has none of .* choose of \['e1', 'e2'\]"):
        drift_of(run, "e0")


def rows(z: np.ndarray) -> Representations:
    ids = np.arange(len(z))
    return Representations(
        impression_N=ids, user_N=ids, ad_N=ids, ts_us_N=ids + 1, z_Nd=z,
        logits_NK=np.zeros((len(z), 1), np.float32),
    )  # fmt: skip
