"""Two launchers on loopback, as two hosts would be: the same stage, the same bytes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from pretrain_world import FIRST, prepare_run, tiny_run

from pipeline.run.manifest import need_manifest
from pipeline.run.paths import Run

ROOT = Path(__file__).parents[2]
TWO = {
    "train.ranks": 2,
    "train.zero_stage": 1,
    "train.layout.sharding": "row",
    "window.calibration_hours": 0,
}


def run_in(home: Path, **more: object) -> Run:
    run = tiny_run(home, FIRST, overrides=TWO | more)
    prepare_run(run)
    return run


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def start(run: Run, *arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HEADWATER_HOME": str(run.home)}
    return subprocess.Popen(
        [sys.executable, "-m", "pipeline", *arguments, "--run", str(run.folder)],
        env=environment | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, errors = process.communicate(timeout=500)
    return process.returncode, errors


@pytest.mark.long
def test_two_launchers_publish_what_one_does(tmp_path):
    run, port = run_in(tmp_path / "two"), str(free_port())
    hosts = [start(run, "hosts", "--hosts", "2", "--host", str(i), "--port", port) for i in (0, 1)]
    for code, errors in map(ended, hosts):
        assert code == 0, errors[-3000:]
    alone = run_in(tmp_path / "one")
    code, errors = ended(start(alone, "pretrain"))
    assert code == 0, errors[-3000:]
    wanted = need_manifest(alone.output("pretrain")).fingerprint
    assert need_manifest(run.output("pretrain")).fingerprint == wanted


@pytest.mark.long
def test_a_lost_host_ends_all_and_a_restart_goes_on(tmp_path):
    run, port = run_in(tmp_path / "lost", **{"train.batch_size": 16}), str(free_port())
    both = ("hosts", "--hosts", "2", "--port", port, "--host")
    first, second = start(run, *both, "0"), start(run, *both, "1")
    assert first.stderr is not None
    for line in first.stderr:
        if "versions" in line:  # the banner's last line: ranks have met and begin to train
            break
    second.kill()
    second.wait()
    code, errors = ended(first)
    assert code == 75, errors[-3000:]
    assert "start all hosts again" in errors
    again = [start(run, *both, str(i)) for i in (0, 1)]
    for code, errors in map(ended, again):
        assert code == 0, errors[-3000:]
