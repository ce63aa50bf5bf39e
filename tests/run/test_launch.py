"""Started stages stream their lines and leave no orphans."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from pipeline.run.launch import started, stream

ROOT = Path(__file__).resolve().parents[2]
FAMILY = (
    "import subprocess, sys, time;"
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']);"
    "print(child.pid, flush=True); time.sleep(60)"
)
PARENT = """
import sys
from pipeline.run.launch import started
stage = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
with started([sys.executable, "-c", stage]) as p:
    print(p.stdout.readline(), flush=True)
    p.wait()
"""


def gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state == "Z"


def eventually(holds: Callable[[], bool], seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if holds():
            return True
        time.sleep(0.05)
    return False


def test_lines_come_in_order_with_the_exit_code() -> None:
    script = "import sys; print('one'); print('two', file=sys.stderr); print(); sys.exit(65)"
    lines: list[str] = []
    with started([sys.executable, "-u", "-c", script]) as process:
        code, last = stream(process, lines.append)
    assert (code, last, lines) == (65, "two", ["one", "two"])


def test_leaving_kills_the_whole_family() -> None:
    with started([sys.executable, "-c", FAMILY]) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        assert not gone(child)
    assert process.returncode == -signal.SIGKILL
    assert eventually(lambda: gone(child))


def test_a_killed_parent_takes_its_stage_along() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert parent.stdout is not None
    stage = int(parent.stdout.readline())
    assert not gone(stage)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    assert eventually(lambda: gone(stage))
