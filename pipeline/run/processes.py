"""Long-lived processes in sessions of their own: started, found again, and stopped whole.

A session holds everything that a server forks, also what leaves its process group, so that "is
anything of it alive" has an answer. Reads /proc: Linux only.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pipeline.run.errors import RetryError
from pipeline.run.paths import REPOSITORY

GRACE_S = 15.0


@dataclass(frozen=True, kw_only=True)
class Session:
    """A started process; `born` (clock ticks since boot) tells it from a later one of that pid."""

    pid: int
    born: int


@dataclass(frozen=True, kw_only=True)
class _Stat:
    """The fields of /proc/<pid>/stat that are used here."""

    pid: int
    state: str
    session: int
    born: int


def start(command: list[str], *, environment: Mapping[str, str], log: Path) -> Session:
    """Start `command` in the repository, leading a new session, its output appended to `log`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        process = subprocess.Popen(
            command,
            cwd=REPOSITORY,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    stat = _stat(process.pid)
    return Session(pid=process.pid, born=stat.born if stat else 0)


def leader_alive(session: Session) -> bool:
    """Whether the started process itself runs."""
    stat = _stat(session.pid)
    return stat is not None and stat.born == session.born and stat.state != "Z"


def members(session: Session) -> list[int]:
    """Living processes of the session, the leader among them."""
    leader = _stat(session.pid)
    if leader is not None and leader.born != session.born:
        return []  # the pid belongs to another process by now
    return [s.pid for s in _all() if s.session == session.pid and s.state != "Z"]


def stop(sessions: Iterable[Session], *, grace_s: float = GRACE_S) -> None:
    """End sessions: SIGTERM, SIGKILL after the grace time; `RetryError` if one still lives."""
    sessions = list(sessions)
    for number, patience in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 5.0)):
        deadline = time.monotonic() + patience
        _signal(sessions, number)
        while time.monotonic() < deadline:
            _reap(sessions)
            if not any(members(s) for s in sessions):
                return
            if number == signal.SIGKILL:
                _signal(sessions, number)
            time.sleep(0.1)
    left = sorted(pid for s in sessions for pid in members(s))
    raise RetryError(f"processes {left} do not end; stop them by hand")


def tail(log: Path, lines: int = 5) -> str:
    """The last lines of a log file, for an error message."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 20_000))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
    return "\n".join([line for line in text.splitlines() if line.strip()][-lines:])


def _signal(sessions: list[Session], number: signal.Signals) -> None:
    for session in sessions:
        for pid in members(session):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)


def _reap(sessions: list[Session]) -> None:
    """Collect ended children of this very process."""
    for session in sessions:
        with suppress(ChildProcessError):
            os.waitpid(session.pid, os.WNOHANG)


def _all() -> Iterable[_Stat]:
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            stat = _stat(int(entry))
            if stat is not None:
                yield stat


def _stat(pid: int) -> _Stat | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text[text.rindex(")") + 2 :].split()  # the name before it may hold blanks
    return _Stat(pid=pid, state=fields[0], session=int(fields[3]), born=int(fields[19]))
