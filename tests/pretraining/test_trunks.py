"""The chain runs with any baseline as the trunk, by one setting."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from model.snapshot import load_snapshot, read_meta
from pipeline.run.manifest import need_manifest
from pipeline.run.paths import Run, open_run

HERE = Path(__file__).parent
ARCHS = ("wukong", "wukong_pma", "interformer", "dcnv2", "din")
archs = pytest.mark.parametrize("arch", ARCHS)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    done = subprocess.run(
        [sys.executable, str(HERE / "trunk_worker.py"), str(tmp_path_factory.mktemp("h")), *ARCHS],
        env={**os.environ, "PYTHONPATH": str(HERE.parents[1])},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    folders = json.loads(done.stdout.splitlines()[-1])
    return {arch: open_run(folder) for arch, folder in folders.items()}


@archs
def test_trains_and_publishes_its_trunk(runs, arch):
    folder = runs[arch].output("pretrain")
    assert read_meta(folder / "model")["config"]["arch"] == arch
    trunk = load_snapshot(folder / "model").dense.trunk
    assert type(trunk).__module__ == f"model.baselines.{arch.removesuffix('_pma')}"
    losses = [json.loads(r)["loss"] for r in (folder / "metrics.jsonl").read_text().splitlines()]
    assert all(math.isfinite(loss) for loss in losses)


@archs
def test_is_evaluated(runs, arch):
    predictions = pl.read_parquet(runs[arch].output("evaluate") / "predictions.parquet")
    assert predictions["p_click"].is_between(0, 1).all()
    assert predictions["p_click"].n_unique() > 10


@pytest.mark.parametrize("arch", [ARCHS[0], ARCHS[-1]])
def test_is_logged_and_precomputed(runs, arch):
    shard = runs[arch].output("precompute", "0")
    assert len(pl.read_parquet(shard / "vectors.parquet")) == need_manifest(shard).rows > 0
    assert need_manifest(runs[arch].output("represent")).rows > 0


def test_trunks_differ_in_lineage_and_share_the_lake(runs):
    assert len({run.config.lineage for run in runs.values()}) == len(ARCHS)
    assert len({run.config.dataset for run in runs.values()}) == 1
