"""Trainings of test_pretrain_ranks.py: `ranks_worker.py HOME`, ranks forked from one process.

The same rows are trained by two ranks, by two ranks of which one is killed here and there, and by
one rank that gets the two ranks' batches as one.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import numpy as np
import torch
from pretrain_worker import forked
from pretrain_world import FIRST, prepare_run, tiny_run

sys.path.insert(0, str(Path(__file__).parents[1] / "model"))
from rank_world import forked_ranks, load_libraries

from model.batch import Batch, EventBatch
from pipeline.mixing.loader import Loader
from pipeline.pretraining.pretrain import Training, train
from pipeline.run.manifest import write_json
from pipeline.run.paths import Run

TWO = {"train.ranks": 2, "train.zero_stage": 1, "train.layout.sharding": "row"}
PLAIN = {"window.calibration_hours": 0}
KILLS = [(1, 6)]  # (rank, step)


class JointLoader:
    """The loaders of two ranks as one: batch i is what both of them have in their batches i."""

    def __init__(self, run: Run, **span: int) -> None:
        names = {"rank", "world_size"}
        span = {k: v for k, v in span.items() if k not in names}
        self.parts = [Loader(run, **span, rank=r, world_size=2) for r in range(2)]
        self.num_batches = self.parts[0].num_batches
        self.num_rows = sum(p.num_rows for p in self.parts)
        self.columns = {
            n: np.concatenate([p.columns[n] for p in self.parts]) for n in self.parts[0].columns
        }
        lengths = [p.lengths for p in self.parts]
        self.lengths = {n: np.concatenate([part[n] for part in lengths]) for n in lengths[0]}

    def batches(self, start: int = 0) -> Iterator[Batch]:
        for index in range(start, self.num_batches):
            first, second = (p.batch(index) for p in self.parts)
            second.row_B.add_(self.parts[0].num_rows)
            yield joined(first, second)


def joined(first: Batch, second: Batch) -> Batch:
    def cat(a: object, b: object, names: list[str]) -> dict[str, torch.Tensor]:
        return {n: torch.cat([getattr(a, n), getattr(b, n)]) for n in names}

    plain = [f.name for f in fields(Batch) if f.name != "events"]
    of_events = [f.name for f in fields(EventBatch)]
    pairs = {n: (e, second.events[n]) for n, e in first.events.items()}
    events = {n: EventBatch(**cat(*pair, of_events)) for n, pair in pairs.items()}
    return Batch(events=events, **cat(first, second, plain))


def filled(run: Run, folder: Path) -> None:
    """What the stage would publish, into `folder`."""
    folder.mkdir(exist_ok=True)
    train(run, folder, "hash")


def joint(run: Run, folder: Path) -> None:
    """One rank on the batches of two."""
    import pipeline.pretraining.pretrain as module

    module.Loader = JointLoader
    filled(run, folder)


def killed(run: Run, folder: Path, rank: int, of_rank: int, at_step: int) -> None:
    """Train with a checkpoint after every step; one rank dies by SIGKILL at one."""
    inner = Training.step

    def dies(self: Training, batch: object) -> None:
        if (rank, self.engine.steps) == (of_rank, at_step):
            os.kill(os.getpid(), signal.SIGKILL)
        inner(self, batch)
        self.save()

    Training.step = dies
    filled(run, folder)


def main(home: Path, kills: list[tuple[int, int]]) -> None:
    load_libraries()
    one, two = tiny_run(home, FIRST, overrides=PLAIN), tiny_run(home, FIRST, overrides=PLAIN | TWO)
    calibrated = tiny_run(home, FIRST, overrides=TWO)
    runs = (one, two, calibrated)
    statuses = {f"prepare {n}": [forked(lambda r=r: prepare_run(r))] for n, r in enumerate(runs)}
    meeting = home / "meeting"
    statuses["two"] = forked_ranks(2, meeting, lambda _: filled(two, home / "two"))
    statuses["joint"] = [forked(lambda: joint(one, home / "joint"))]
    for of_rank, step in kills:
        name, again = f"killed {of_rank} {step}", home / f"again_{of_rank}_{step}"
        statuses[name] = forked_ranks(
            2, meeting, lambda rank, a=again, k=(of_rank, step): killed(calibrated, a, rank, *k)
        )
        shutil.rmtree(again)
        statuses[f"again {of_rank} {step}"] = forked_ranks(
            2, meeting, lambda _, a=again: filled(calibrated, a)
        )
        shutil.rmtree(calibrated.inside("checkpoints"))
    write_json(home / "result.json", {"statuses": statuses, "run": str(calibrated.folder)})


if __name__ == "__main__":
    given = [tuple(map(int, kill.split(","))) for kill in sys.argv[2:]]
    main(Path(sys.argv[1]), given or KILLS)
