"""Stage pretrain on two ranks: one rank's model, kill -9 of any rank, a stage that publishes."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from model.snapshot import load_snapshot
from pipeline.run.manifest import need_manifest
from pipeline.run.paths import Run, open_run

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
TOLERANCE = 1e-4
NUM_STEPS = 11  # of the run on two ranks


def world_of(home: Path, *kills: str) -> Run:
    """Train everything; the run on two ranks, whose stage has not been run."""
    done = subprocess.run(
        [sys.executable, str(HERE / "ranks_worker.py"), str(home), *kills],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads((home / "result.json").read_text())
    for name, codes in result["statuses"].items():
        if name.startswith("killed"):
            assert codes[int(name.split()[1])] == -signal.SIGKILL, (name, codes)
        else:
            assert not any(codes), f"{name}: {codes}\n{done.stderr[-3000:]}"
    return open_run(result["run"])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return world_of(tmp_path_factory.mktemp("home"))


def content(folder: Path) -> dict[str, str]:
    """Fingerprints of all files, without what names the folder."""
    paths = sorted(p for p in folder.rglob("*") if p.is_file() and p.name != "manifest.json")
    digests = {p: hashlib.sha256(p.read_bytes()).hexdigest() for p in paths}
    return {str(p.relative_to(folder)): d for p, d in digests.items()}


def test_two_ranks_train_what_one_does_on_their_rows(run):
    home = run.home
    for file in ("dense", "tables", "moments"):
        mine, theirs = (
            load_file(home / name / "model" / f"{file}.safetensors") for name in ("two", "joint")
        )
        assert mine.keys() == theirs.keys()
        for name, weight in mine.items():
            torch.testing.assert_close(weight, theirs[name], rtol=0, atol=TOLERANCE)
    mine, theirs = (
        [json.loads(x) for x in (home / n / "metrics.jsonl").read_text().splitlines()]
        for n in ("two", "joint")
    )
    assert [r["rows"] for r in mine] == [r["rows"] for r in theirs]
    assert [r["loss"] for r in mine] == pytest.approx([r["loss"] for r in theirs], abs=1e-5)


def test_the_stage_publishes_what_it_does_when_a_rank_was_killed(run):
    """The stage launches its ranks; forked ones that were killed and went on give its bytes."""
    assert "ZeRO 1, tables by row" in published(run)
    assert load_snapshot(run.output("pretrain") / "model").sparse.table_names


@pytest.mark.long
def test_twenty_kills_at_random_end_with_the_same_bytes(tmp_path):
    draw = random.Random(0)
    every = [f"{rank},{step}" for rank in range(2) for step in range(NUM_STEPS)]
    run = world_of(tmp_path, *sorted(draw.sample(every, 20)))
    for _ in range(4):  # and through torchrun, from outside, whenever it may be
        _kill_a_rank(run, draw)
    published(run)


def published(run: Run) -> str:
    """Run the stage to its end, which must be that of every killed training; what it logged."""
    process = stage(run)
    _, errors = process.communicate(timeout=500)
    assert process.returncode == 0, errors[-3000:]
    folder = run.output("pretrain")
    assert need_manifest(folder).rows > 0
    assert json.loads((folder / "summary.json").read_text())["steps"] == NUM_STEPS
    whole, again = content(folder), sorted(run.home.glob("again_*"))
    assert again
    assert [a.name for a in again if content(a) != whole] == []
    return errors


def stage(run: Run) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "pipeline", "pretrain", "--run", str(run.folder)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def _kill_a_rank(run: Run, draw: random.Random) -> None:
    """Kill one of the stage's ranks some time after training began."""
    process = stage(run)
    for line in process.stderr:
        if "versions" in line:  # the last of the banner
            break
    time.sleep(draw.uniform(0, 5))
    ranks = _ranks_of(run)
    if ranks:
        os.kill(draw.choice(ranks), signal.SIGKILL)
    _, errors = process.communicate(timeout=120)
    assert process.returncode in (0, 75), errors[-2000:]
    assert _ranks_of(run) == []


def _ranks_of(run: Run) -> list[int]:
    """Processes that train this run as ranks."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"rank" in words and str(run.folder).encode() in words and b"--standalone" not in words:
            found.append(int(path.parent.name))
    return found
