"""Run one command as several ranks under torchrun; the rank that failed says why, no other one.

When a rank dies, the others fail too, in whatever they wait for it. A rank that fails therefore
leaves its own error in a file, and one that has merely lost another rank waits to be ended.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline.run.errors import (
    EXIT_OK,
    ConfigError,
    ContractError,
    DataError,
    ResumeError,
    RetryError,
)
from pipeline.run.launch import die_with_parent, started, stream
from pipeline.run.manifest import write_json

ANSWER = "answer.json"
PATIENCE_S = 20.0  # torchrun looks at its processes ten times a second
_LOST = re.compile(r"gloo|[Cc]onnection (closed|reset|refused)|Broken pipe|TCPStore|DistNetwork")
_FAILED = re.compile(r"failed \(exitcode: ")  # torchrun's first line about a rank that ended
_CAUSE = re.compile(r"Root Cause.*?rank\s*: (\d+).*?exitcode\s*: (-?\d+)", re.DOTALL)
_KINDS = {e.__name__: e for e in (ConfigError, ContractError, DataError, ResumeError, RetryError)}


def torchrun_command(num_ranks: int, module: str, *arguments: str) -> list[str]:
    """`python -m module <arguments>` as ranks of this host, that meet on loopback."""
    local = ["--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", str(num_ranks)]
    run = ["-m", "--", module, *arguments]  # after -- no argument is taken for torchrun's own
    return [sys.executable, "-m", "torch.distributed.run", *local, *run]


def run_ranks(num_ranks: int, module: str, *arguments: str) -> Any:
    """Run `python -m module <arguments> --answers DIR` on every rank; what rank 0 answers.

    Raises the error of the rank that failed first. `RetryError`: a rank was killed.
    """
    with tempfile.TemporaryDirectory(prefix="headwater-ranks-") as name:
        answers = Path(name)
        command = torchrun_command(num_ranks, module, *arguments, "--answers", name)
        lines = _Lines()
        loopback = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        with started(command, loopback) as process:
            code, _ = stream(process, lines.add)
        if code != EXIT_OK:
            raise _error(answers, code, lines.held)
        return json.loads((answers / ANSWER).read_text())


def answered(answers: Path, rank: int, work: Callable[[], Any]) -> None:
    """Do a rank's work; its answer (JSON, of rank 0) or its error goes to the folder `answers`."""
    die_with_parent()
    try:
        answer = work()
    except Exception as error:
        if isinstance(error, RuntimeError) and _LOST.search(str(error)):
            time.sleep(PATIENCE_S)  # whoever failed first is being noticed
        kind = type(error).__name__
        failure = {"kind": kind, "message": str(error), "at": time.monotonic()}
        write_json(answers / f"rank_{rank}.json", failure)
        raise
    if rank == 0:
        write_json(answers / ANSWER, answer)


class _Lines:
    """Hands lines on until torchrun begins to report a failure; what follows is held back."""

    def __init__(self) -> None:
        self.held = ""

    def add(self, line: str) -> None:
        if self.held or _FAILED.search(line):
            self.held += line + "\n"
        else:
            sys.stderr.write(line + "\n")


def _error(answers: Path, code: int, report: str) -> Exception:
    """What to raise for a failed launch."""
    found = []
    for path in answers.glob("rank_*.json"):
        failure = json.loads(path.read_text())
        found.append((failure["at"], path.stem.removeprefix("rank_"), failure))
    if found:
        _, rank, failure = min(found, key=lambda f: f[0])
        kind, message = failure["kind"], failure["message"]
        if kind in _KINDS:
            return _KINDS[kind](f"{message} (rank {rank})")
        return RuntimeError(f"rank {rank}: {kind}: {message}")
    cause = _CAUSE.search(report)
    if cause and int(cause[2]) < 0:
        name = signal.Signals(-int(cause[2])).name
        return RetryError(f"rank {cause[1]} was killed by {name}; run again to go on from there")
    if code < 0:
        return RetryError(f"torchrun was killed by {signal.Signals(-code).name}; run again")
    rank = f"rank {cause[1]} ended with exit code {cause[2]}" if cause else f"torchrun: {code}"
    return RuntimeError(f"{rank}; its lines are above{os.linesep}{report}")
