"""Ranks under torchrun: what they answer, whose error is told, and that none is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from torch.distributed.run import get_args_parser

from pipeline.run.errors import DataError, RetryError
from pipeline.run.ranks import run_ranks, torchrun_command

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def _probe_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(HERE))


def pids(folder: Path) -> list[int]:
    return [int(p.read_text() or 0) for p in sorted(folder.glob("pid_*"))]


def gone(pid: int, within_s: float = 10.0) -> bool:
    """Whether a process ends in time; a zombie that nobody waited for counts as ended."""
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


def test_rank_0_answers_and_lines_are_handed_on(tmp_path, capfd):
    assert run_ranks(2, "rank_probe", "answers", str(tmp_path)) == {"ranks": "2", "of": 0}
    assert {"rank 0 works", "rank 1 works"} <= set(capfd.readouterr().err.splitlines())


def test_no_argument_is_taken_for_one_of_torchrun():
    command = torchrun_command(3, "pipeline", "rank", "--run", "home/runs/1")
    given = get_args_parser().parse_args(command[3:])
    assert (given.nproc_per_node, given.module, given.training_script) == ("3", True, "pipeline")
    assert given.training_script_args == ["rank", "--run", "home/runs/1"]


def test_the_failing_rank_is_heard_and_not_those_that_lost_it(tmp_path, capfd):
    with pytest.raises(DataError, match=r"loss is nan at step 3; lower .* \(rank 1\)"):
        run_ranks(2, "rank_probe", "fails", str(tmp_path))
    assert "Connection closed" not in capfd.readouterr().err
    assert all(gone(pid) for pid in pids(tmp_path))


def test_a_killed_rank_ends_all_and_may_be_tried_again(tmp_path):
    with pytest.raises(RetryError, match="rank 1 was killed by SIGKILL; run again"):
        run_ranks(2, "rank_probe", "killed", str(tmp_path))
    assert all(gone(pid) for pid in pids(tmp_path))


def test_no_rank_outlives_its_launcher(tmp_path):
    call = "import sys; from pipeline.run.ranks import run_ranks; run_ranks(2, *sys.argv[1:])"
    paths = os.pathsep.join([str(HERE), str(HERE.parents[1])])
    launcher = subprocess.Popen(
        [sys.executable, "-c", call, "rank_probe", "waits", str(tmp_path)],
        env={**os.environ, "PYTHONPATH": paths},
    )
    while len([p for p in pids(tmp_path) if p]) < 2 and launcher.poll() is None:
        time.sleep(0.05)
    launcher.send_signal(signal.SIGKILL)
    launcher.wait()
    ranks = pids(tmp_path)
    assert len(ranks) == 2
    assert all(gone(pid) for pid in ranks)
