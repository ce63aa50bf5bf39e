from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from plane_world import ingest_all, landed_run, run_plane

from pipeline.mixing.labels import labels
from pipeline.mixing.mix import mix
from pipeline.mixing.timeline import timelines
from pipeline.run.manifest import MANIFEST
from pipeline.run.paths import REPOSITORY, Run

ROWS = 4_000


def killed_when(run: Run, stage: str, unit: str, reached: Callable[[], bool]) -> None:
    """Start a stage as a process and kill it with SIGKILL as soon as `reached` holds."""
    command = [sys.executable, "-m", "pipeline", stage, "--run", str(run.folder)]
    command += ["--unit", unit] if unit else []
    process = subprocess.Popen(command, cwd=REPOSITORY, env=dict(os.environ))
    deadline = time.monotonic() + 120
    while not reached():
        assert process.poll() is None, "the stage ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not (run.output(stage, unit) / MANIFEST).exists()


@pytest.fixture(scope="module")
def unkilled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return run_plane(landed_run(tmp_path_factory.mktemp("unkilled"), count=ROWS))


def test_a_killed_ingest_ends_equal_after_a_rerun(tmp_path: Path, unkilled: dict[str, str]) -> None:
    run = landed_run(tmp_path, count=ROWS)
    lake = run.lake("canonical", "impressions")
    killed_when(run, "ingest", "feed", lambda: any(lake.glob("*/surface=feed/bucket=0.parquet")))
    assert run_plane(run) == unkilled


def test_a_killed_mix_ends_equal_after_a_rerun(tmp_path: Path, unkilled: dict[str, str]) -> None:
    run = landed_run(tmp_path, count=ROWS)
    ingest_all(run)
    labels(run)
    timelines(run, "0")
    half_done = run.output("mix").parent / ".mix.tmp"
    killed_when(run, "mix", "", half_done.exists)
    assert half_done.exists()
    assert mix(run).fingerprint == unkilled["mix"]
    assert not half_done.exists()
