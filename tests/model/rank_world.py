"""Ranks as forked processes of one that has loaded the libraries: many trainings in seconds."""

from __future__ import annotations

import faulthandler
import importlib
import os
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from model.dense import _import_deepspeed

LIMIT_S = 300  # of a rank's work; one that hangs shows where, and fails
# loaded at first use, which would be in every rank again
SLOW_IMPORTS = ("torch.distributed.optim", "deepspeed.runtime.zero.muon.muon_optimizer")


def load_libraries() -> None:
    """Load what ranks need, before the first is forked."""
    deepspeed = _import_deepspeed()
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # looks for compilers
    for name in SLOW_IMPORTS:
        importlib.import_module(name)


def forked_ranks(num_ranks: int, meeting: Path, work: Callable[[int], object]) -> list[int]:
    """Exit statuses of `work(rank)` on every rank; once one failed the others are ended."""
    meeting.unlink(missing_ok=True)
    pids = [_forked(rank, num_ranks, meeting, work) for rank in range(num_ranks)]
    statuses: dict[int, int] = {}
    while len(statuses) < num_ranks:
        for pid in [p for p in pids if p not in statuses]:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                statuses[pid] = os.waitstatus_to_exitcode(status)
                if status:
                    _end(pids, statuses)
        time.sleep(0.05)
    return [statuses[pid] for pid in pids]


def _end(pids: list[int], statuses: dict[int, int]) -> None:
    for pid in pids:
        if pid not in statuses:
            os.kill(pid, 15)


def _forked(rank: int, num_ranks: int, meeting: Path, work: Callable[[int], object]) -> int:
    child = os.fork()
    if child:
        return child
    try:
        faulthandler.dump_traceback_later(LIMIT_S, exit=True)
        torch.set_num_threads(1)
        os.environ |= {"LOCAL_RANK": str(rank), "GLOO_SOCKET_IFNAME": "lo"}
        where = f"file://{meeting}"
        dist.init_process_group("gloo", init_method=where, rank=rank, world_size=num_ranks)
        work(rank)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)
