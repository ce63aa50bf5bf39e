"""Stage pretrain on a tiny planted world: bytes, kill -9, segments, warm start, epochs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from model.batch import Batch
from model.foundation import ModelOutput
from model.snapshot import load_snapshot, read_meta
from pipeline.__main__ import main as pipeline
from pipeline.pretraining.epoch import inherited_epoch, opens_epoch
from pipeline.pretraining.pretrain import Training
from pipeline.pretraining.setup import banner, build_engine
from pipeline.run.codec import to_dict
from pipeline.run.config import Parent, with_overrides
from pipeline.run.manifest import need_manifest, write_json
from pipeline.run.paths import Run, open_run, run_folder
from pipeline.run.window import DAY_US, window_of

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Run, list[int]]:
    """A first run (killed twice and resumed), the next day's, and the exit statuses."""
    home = tmp_path_factory.mktemp("home")
    done = subprocess.run(
        [sys.executable, str(HERE / "pretrain_worker.py"), str(home)],
        env={**os.environ, "PYTHONPATH": str(HERE.parents[1])},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads((home / "result.json").read_text())
    first, following = (open_run(folder) for folder in result["folders"])
    return first, following, result["statuses"]


@pytest.fixture(scope="module")
def first(world: tuple[Run, Run, list[int]]) -> Run:
    return world[0]


def test_publishes_model_epoch_and_summary(first):
    folder = first.output("pretrain")
    window = window_of(first.config)
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["epoch"]["fm_cut_us"] == window.students_begin
    assert summary["epoch"]["folder"] == str((folder / "epoch").relative_to(first.home))
    assert load_snapshot(folder / "model").sparse.table_names
    assert read_meta(folder / "epoch")["extra"]["steps"] < summary["steps"]
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert records[-1]["rows"] == summary["rows"] == need_manifest(folder).rows


def test_epoch_saw_no_label_of_the_students_span(first):
    steps = read_meta(first.output("pretrain") / "epoch")["extra"]["steps"]
    training = Training.segments_of(first, window_of(first.config))
    assert training[0].columns["label_us"].max() < window_of(first.config).students_begin
    assert steps == training[0].num_batches


def test_every_day_publishes_its_intercepts(world):
    for run in world[:2]:
        folder = run.output("pretrain")
        summary = json.loads((folder / "summary.json").read_text())
        found = summary["calibration"]
        assert read_meta(folder / "model")["extra"]["calibration"] == found
        assert set(found["intercepts"]) == set(run.config.surfaces)
        assert all(shifts["click"] != 0 for shifts in found["intercepts"].values())
        assert all(counts["click"] > 0 for counts in found["positives"].values())


def test_killed_and_resumed_publishes_the_same_bytes(world):
    first, _, statuses = world
    killed = -signal.SIGKILL
    assert statuses == [0, 0, killed, killed, 0, 0, 0, 0]  # the fifth: nothing was published
    whole, again = need_manifest(first.folder / "whole"), need_manifest(first.output("pretrain"))
    assert {f.path: f.sha256 for f in again.files} == {f.path: f.sha256 for f in whole.files}


def test_next_day_starts_from_the_champion_and_keeps_its_epoch(world):
    first, run, _ = world
    assert not opens_epoch(run, window_of(run.config))
    assert not (run.output("pretrain") / "epoch").exists()
    mine, theirs = (
        json.loads((r.output("pretrain") / "summary.json").read_text()) for r in (run, first)
    )
    assert mine["epoch"] == theirs["epoch"]
    old, new = (load_snapshot(r.output("pretrain") / "model") for r in (first, run))
    bias = "dense.heads.bias_ZK"
    moved = (new.state_dict()[bias] - old.state_dict()[bias]).abs().max()
    assert 0 < moved < 0.5


def chain(home: Path, base: Run, cuts_days_ago: list[float], epoch_days_ago: float) -> Run:
    """A run whose ancestors (newest first) were cut so many days before its end."""
    end = window_of(base.config).day_end
    parent = None
    for place, ago in reversed(list(enumerate(cuts_days_ago))):
        config = replace(base.config, parent=parent, train=replace(base.config.train, seed=place))
        folder = run_folder(config, home)
        (folder / "pretrain" / "model").mkdir(parents=True)
        for name in ("dense.safetensors", "tables.safetensors"):
            (folder / "pretrain" / "model" / name).write_bytes(bytes([place]))
        write_json(folder / "run.json", to_dict(config))
        cut = int(end - epoch_days_ago * DAY_US)
        epoch = {"id": "old", "fm_cut_us": cut, "folder": "runs/old/epoch"}
        write_json(folder / "pretrain" / "summary.json", {"epoch": epoch})
        parent = Parent(
            day=config.day,
            folder=str(folder.relative_to(home)),
            cut_us=int(end - ago * DAY_US),
            fingerprint="f",
        )
    return Run(folder=base.folder, config=replace(base.config, parent=parent))


@pytest.mark.parametrize(
    ("cuts", "epoch_age", "refreshed_from"),
    [
        ([0.5, 1.5, 2.5], 6.0, None),  # young enough
        ([0.5, 1.5, 2.5, 3.5], 9.0, 2),  # the newest cut at or before the students' span
        ([0.5, 1.5], 9.0, None),  # old, but every champion has seen the span
    ],
)
def test_an_old_epoch_is_refreshed_from_an_earlier_champion(
    first, tmp_path, cuts, epoch_age, refreshed_from
):
    base = Run(folder=tmp_path / "runs" / "day" / "x", config=first.config)
    run = chain(tmp_path, base, cuts, epoch_age)
    epoch = inherited_epoch(run, window_of(run.config))
    if refreshed_from is None:
        assert epoch["id"] == "old"
        return
    end = window_of(first.config).day_end
    assert epoch["fm_cut_us"] == int(end - cuts[refreshed_from] * DAY_US)
    assert epoch["folder"].endswith("pretrain/model")


def test_the_shift_of_the_mix_reaches_the_loss_and_not_the_model(first):
    """The loss sees the logits plus each row's shift; the model's own logits stay as they are."""
    loader = SimpleNamespace(columns={"shift": np.array([0.0, 1.5, -0.5], np.float32)})
    logits = torch.tensor([[0.1], [0.2], [0.3]], requires_grad=True)
    batch = Batch(
        ids_BF=torch.zeros(2, 1, dtype=torch.int64),
        dense_BC=torch.zeros(2, 0),
        events={},
        surface_B=torch.zeros(2, dtype=torch.int64),
        labels_BK=torch.tensor([[1.0], [0.0]]),
        mask_BK=torch.ones(2, 1),
        weight_BK=torch.ones(2, 1),
        row_B=torch.tensor([1, 2]),
    )
    output = ModelOutput(logits[1:], torch.zeros(2, 1), torch.zeros(()))
    losses, seen = [], []
    engine = SimpleNamespace(
        forward=lambda _: output, backward=losses.append, step=lambda: None, steps=1
    )
    training = SimpleNamespace(
        engine=engine,
        segments=[loader],
        segment=0,
        batch=0,
        weights_K=torch.ones(1),
        clock=SimpleNamespace(rows=0),
        meter=SimpleNamespace(add=lambda loss, shifted, *_: seen.append(shifted)),
        run=first,
        _saved_at=time.monotonic() + 1e6,
    )
    Training.step(training, batch)
    wanted = torch.tensor([[0.2 + 1.5], [0.3 - 0.5]])
    assert torch.allclose(seen[0], wanted)
    expected = torch.nn.functional.binary_cross_entropy_with_logits(wanted, batch.labels_BK)
    assert float(losses[0].detach()) == pytest.approx(float(expected))


def test_probe_of_a_trained_run_prints_and_keeps_a_choice(first, tmp_path, capsys):
    path = tmp_path / "probe.json"
    arguments = ["probe", "--run", str(first.folder), "--batches", "2", "--out", str(path)]
    assert pipeline(arguments) == 0
    found, printed = json.loads(path.read_text()), capsys.readouterr().out
    assert found["batches"] == 2
    assert len(found["layers"]) == 22
    for name, row in found["layers"].items():
        assert name in printed
        assert min(v for k, v in row.items() if k.endswith("_db")) > 10, (name, row)
        assert row["safe"] == (name not in found["mxfp8_keep"])
    config = with_overrides(
        first.config, {"model.precision": "mxfp8", "model.mxfp8_keep": found["mxfp8_keep"]}
    )
    build_engine(replace(first, config=config)).export()  # every name is accepted


def test_banner_says_that_mxfp8_is_emulated(first, caplog):
    config = with_overrides(first.config, {"model.precision": "mxfp8"})
    run = replace(first, config=config)
    with caplog.at_level("INFO"):
        banner(run, build_engine(run), 1, "hash")
    said = [m for m in caplog.messages if "mxfp8" in m]
    assert len(said) == 1
    assert "emulated" in said[0]
