"""Checkpoints: commit rule, exact resume after kill -9, warm start."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from model_world import NUM_SURFACES, OBJECTIVES, planted_features
from safetensors.torch import load_file
from test_parallel import build, engine_config, train

from model import checkpoint
from model.config import ConfigError, EmbeddingTable, FeatureSet, ModelConfig
from model.foundation import FoundationModel
from model.parallel import Engine
from model.snapshot import save_snapshot

WORKER = Path(__file__).with_name("checkpoint_worker.py")


def test_newest_committed_wins_and_the_rest_goes(tmp_path):
    engine = Engine(build, engine_config())
    for step in range(3):
        train(engine, 1, begin=step)
        checkpoint.save(tmp_path, engine, {"batch": step}, config_hash="a")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step_2", "step_3"]
    (tmp_path / "step_3" / checkpoint.COMMITTED).unlink()
    assert checkpoint.resume(tmp_path, Engine(build, engine_config()), config_hash="a") == {
        "batch": 1
    }
    assert [p.name for p in tmp_path.iterdir()] == ["step_2"]
    assert checkpoint.resume(tmp_path, engine, config_hash="other") is None
    assert list(tmp_path.iterdir()) == []


def test_kill_9_and_resume_ends_with_the_same_bits(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(WORKER.parents[2]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(WORKER), str(tmp_path)],
        env=environment,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == [0, -signal.SIGKILL, 0], done.stderr[-2000:]
    for name in ("dense", "sparse"):
        whole, killed = (load_file(tmp_path / f / f"{name}.final") for f in ("whole", "killed"))
        assert whole.keys() == killed.keys()
        assert all(torch.equal(whole[k], killed[k]) for k in whole)
    assert json.loads((tmp_path / "killed" / "began.json").read_text()) == 6


def with_tables(features: FeatureSet, *, drop: str, add: str, resize: str) -> FeatureSet:
    """`drop` goes with its feature, `add` comes with one, `resize` doubles."""
    sparse = tuple(f for f in features.sparse if f.table != drop)
    tables = [t for t in features.tables if t.name != drop]
    tables = [replace(t, buckets=2 * t.buckets) if t.name == resize else t for t in tables]
    tables.append(EmbeddingTable(name=add, buckets=8))
    sparse = (*sparse, replace(sparse[-1], name=add, table=add))
    return replace(features, tables=tuple(tables), sparse=sparse)


def test_warm_start_keeps_what_matches_and_logs_the_rest(tmp_path, caplog):
    old = Engine(build, engine_config())
    train(old, 10)
    features = planted_features()
    save_snapshot(
        tmp_path,
        old.export(),
        features=features,
        objectives=OBJECTIVES,
        surfaces=("a", "b", "c"),
        config=ModelConfig(),
        extra={},
    )
    checkpoint.save_moments(tmp_path, old)
    changed = with_tables(features, drop="cluster", add="device", resize="request")

    def build_changed() -> FoundationModel:
        return FoundationModel(changed, OBJECTIVES, NUM_SURFACES, ModelConfig()).train()

    new = Engine(build_changed, engine_config())
    with caplog.at_level(logging.INFO):
        checkpoint.warm_start(tmp_path, new)
    for line in (
        "table device is new and starts fresh",
        "table cluster is gone and was dropped",
        "table request changed its shape and starts fresh",
    ):
        assert line in caplog.text
    published = load_file(tmp_path / "tables.safetensors")
    assert torch.equal(new.tables.weights()["user"], published["user"])
    assert torch.equal(new.tables.moments()["user"], old.tables.moments()["user"])
    assert new.tables.moments()["user"].abs().sum() > 0
    assert new.tables.moments()["request"].abs().sum() == 0
    assert new.steps == 0
    assert torch.equal(new.export().sparse.state_dict()["tables.weights.user"], published["user"])


def test_warm_start_needs_a_model(tmp_path):
    with pytest.raises(ConfigError, match="holds no model"):
        checkpoint.warm_start(tmp_path, Engine(build, engine_config()))
