"""Start a stage as a process of its own: streamed lines, no orphans, whatever ends the parent."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

from pipeline.run.paths import REPOSITORY

PR_SET_PDEATHSIG = 1


def pipeline_command(*arguments: str) -> list[str]:
    """The command line of a stage or command of this package, in this interpreter."""
    return [sys.executable, "-m", "pipeline", *arguments]


@contextmanager
def started(
    command: list[str], settings: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Run `command` in its own process group, stdout and stderr as one stream of lines.

    `settings` are added to its environment.

    On leaving, and when the starting thread dies in any way, the process is killed; on leaving
    its children are too.
    """
    paths = [str(REPOSITORY), os.environ.get("PYTHONPATH", "")]
    environment = (
        os.environ
        | dict(settings or {})
        | {
            "PYTHONPATH": os.pathsep.join(p for p in paths if p),
            "PYTHONUNBUFFERED": "1",
        }
    )
    process = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        bufsize=1,
        process_group=0,
        preexec_fn=_die_with_parent(),
    )
    try:
        yield process
    finally:
        kill_group(process)
        process.wait()
        if process.stdout:
            process.stdout.close()


def stream(process: subprocess.Popen[str], write: Callable[[str], None]) -> tuple[int, str]:
    """Hand on each line as it comes; the exit code and the last line that was not empty."""
    last = ""
    for line in process.stdout or ():
        text = line.rstrip()
        if text:
            last = text
            write(text)
    return process.wait(), last


def kill_group(process: subprocess.Popen[str]) -> None:
    """Kill a started process and all that it started in its group."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def die_with_parent() -> None:
    """Have this process killed when the thread that started it ends, however it ends."""
    prctl = _prctl()
    if prctl is None:
        return
    parent = os.getppid()
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before the call
        os._exit(1)


def _die_with_parent() -> Callable[[], None] | None:
    prctl = _prctl()  # looked up before the fork
    if prctl is None:
        return None
    parent = os.getpid()

    def in_child() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it died between fork and prctl
            os._exit(1)

    return in_child


def _prctl() -> Callable[..., int] | None:
    if sys.platform != "linux":
        return None
    prctl: Callable[..., int] = ctypes.CDLL(None, use_errno=True).prctl
    return prctl
