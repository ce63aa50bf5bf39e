"""What benchmarks.training runs on every rank: `python -m benchmarks._rank_steps WHAT FOLDER ...`.

`speed`: a pass of the stage pretrain, whose batches the ranks share. `wide`: each rank has as many
rows in a batch as one alone would have. `parity`: every layout against a hand-written loop on the
joint batches.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks._plain_loop import PlainLoop
from model.foundation import FoundationModel, training_loss
from model.layout import STAGES, Layout, Sharding
from model.parallel import Engine, EngineConfig
from model.ranks import any_rank, barrier, join_process_group, rank, total, world_size
from model.snapshot import tables_of
from pipeline.mixing.loader import Loader
from pipeline.run.config import with_overrides
from pipeline.run.paths import Run, open_run
from pipeline.run.process import prepare
from pipeline.run.ranks import answered
from pipeline.run.window import window_of

WARM = 6
PARITY_STEPS = 4
SHARDINGS: tuple[Sharding, ...] = ("table", "row", "data")


def speed(run: Run, batches_of: int = 1) -> dict[str, float]:
    """Rows a second of all ranks together, over a pass without its first steps.

    A batch has the rows of `batches_of` of the run's.
    """
    from pipeline.pretraining.pretrain import Training

    ranks = int(os.environ["WORLD_SIZE"])
    settings = {
        "train.ranks": ranks,
        "train.checkpoint_every_s": 1e9,
        "train.batch_size": run.config.train.batch_size * batches_of,
    }
    run = replace(run, config=with_overrides(run.config, settings))
    torch.set_num_threads(1)
    training = Training(run, window_of(run.config), "benchmark")
    batches = training._batches()
    for _ in range(WARM // batches_of):
        training.step(next(batches))
    barrier()
    rows, began = training.meter.rows, time.monotonic()
    for batch in batches:
        training.step(batch)
    barrier()
    return {"rows_per_s": (training.meter.rows - rows) / (time.monotonic() - began)}


def wide(run: Run) -> dict[str, float]:
    """`speed` with as many rows on each rank as one rank alone has."""
    return speed(run, batches_of=int(os.environ["WORLD_SIZE"]))


def parity(run: Run) -> dict[str, float]:
    """The largest difference in losses and last weights between a layout and the plain loop."""
    torch.set_num_threads(1)
    join_process_group()
    config = run.config
    loader = Loader(run, batch_size=config.train.batch_size)

    def build() -> FoundationModel:
        torch.manual_seed(config.train.seed)
        return FoundationModel(
            config.features, config.objectives, len(config.surfaces), config.model
        )

    weights_K = torch.tensor([o.task_weight for o in config.objectives])
    train = replace(config.train, dense_lr=0.05, sparse_lr=1.0, warmup_steps=0, clip_norm=0.0)
    plain = PlainLoop(build(), train, sgd=True)
    wanted = []
    for step in range(PARITY_STEPS):
        batch = loader.batch(step)
        loss = training_loss(plain.forward(batch), batch, weights_K)
        plain.step(loss)
        wanted.append(float(loss.detach()))
    last = {**plain.model.dense.state_dict(), **plain.tables}
    found = {}
    for stage in STAGES:
        for sharding in SHARDINGS:
            engine = Engine(
                build,
                EngineConfig(
                    batch_size=train.batch_size,
                    dense_lr=train.dense_lr,
                    sparse_lr=train.sparse_lr,
                    ranks=world_size(),
                    zero_stage=stage,
                    layout=Layout(sharding=sharding),
                    optimizer="sgd",
                ),
            )
            losses = [_share(engine, loader, step, weights_K) for step in range(PARITY_STEPS)]
            model = engine.export(averaged=False)
            mine = {**model.dense.state_dict(), **tables_of(model)}
            apart = [abs(a - b) for a, b in zip(losses, wanted, strict=True)]
            apart += [float((mine[n] - last[n]).abs().max()) for n in last]
            found[f"zero{stage}_{sharding}"] = max(apart)
    return found


def _share(engine: Engine, loader: Loader, step: int, weights_K: torch.Tensor) -> float:
    """Train on this rank's part of a batch, parts being unequal; the joint loss."""
    begin, end = loader.first_row(step), loader.first_row(step + 1)
    edges = [begin + (end - begin) * r * (r + 3) // (world_size() * (world_size() + 3))
             for r in range(world_size() + 1)]  # fmt: skip
    batch = loader.rows(edges[rank()], edges[rank() + 1])
    loss = training_loss(engine.forward(batch), batch, weights_K)
    engine.backward(loss)
    engine.step()
    return float(total(loss.detach().clone()))


def main(what: str, folder: str, answers: Path) -> None:
    """Do it as the rank that the environment names."""
    doing = {"speed": speed, "wide": wide, "parity": parity}[what]
    answered(answers, int(os.environ["RANK"]), lambda: doing(open_run(Path(folder))))
    any_rank(False)  # leave together


if __name__ == "__main__":
    prepare()
    main(sys.argv[1], sys.argv[2], Path(sys.argv[4]))
