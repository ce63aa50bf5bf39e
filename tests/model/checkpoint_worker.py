"""Trains twelve steps with a checkpoint every three: once whole, once killed and resumed.

Each training is a forked process, so that the libraries are loaded once. Prints exit statuses.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from test_parallel import build, engine_config, train

from model import checkpoint
from model.parallel import Engine

STEPS, EVERY = 12, 3


def train_all(folder: Path, kill_at: int) -> None:
    torch.set_num_threads(1)
    engine = Engine(build, engine_config())
    state = checkpoint.resume(folder / "checkpoints", engine, config_hash="x")
    begin = state["batch"] if state else 0
    folder.mkdir(exist_ok=True)
    (folder / "began.json").write_text(json.dumps(begin))
    for step in range(begin, STEPS):
        if step == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        train(engine, 1, begin=step)
        if (step + 1) % EVERY == 0:
            checkpoint.save(folder / "checkpoints", engine, {"batch": step + 1}, config_hash="x")
    for name, tensors in zip(("dense", "sparse"), engine.tensors(), strict=True):
        save_file({k: v.contiguous() for k, v in tensors.items()}, folder / f"{name}.final")


def forked(folder: Path, kill_at: int) -> int:
    """Exit status of a training in a process of its own."""
    child = os.fork()
    if child == 0:
        train_all(folder, kill_at)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    root = Path(sys.argv[1])
    phases = [(root / "whole", -1), (root / "killed", 7), (root / "killed", -1)]
    print(json.dumps([forked(folder, kill_at) for folder, kill_at in phases]))
