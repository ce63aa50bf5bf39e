"""One fixed tiny training: `golden_worker.py HOME [--write]` prints the loss of each step as JSON.

With `--write` they become the golden curve of test_golden.py. Everything runs as in the stage
`pretrain`, on one thread; the second curve is the same training under bfloat16 autocast.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import torch
from pretrain_world import FIRST, prepare_run, tiny_run

from model.batch import Batch
from pipeline.pretraining.meter import Meter
from pipeline.pretraining.pretrain import Training
from pipeline.run.paths import Run
from pipeline.run.window import window_of

GOLDEN = Path(__file__).parent / "golden_losses.json"
WORLD = {"source.planted.rows_per_day": 1_500, "train.batch_size": 64}


class Losses(Meter):
    """A meter that keeps the loss of every step."""

    def __init__(self, objectives: tuple[str, ...]) -> None:
        super().__init__(objectives)
        self.each: list[float] = []

    def add(self, loss: torch.Tensor, logits_BK: torch.Tensor, batch: Batch, step: int) -> None:
        super().add(loss, logits_BK, batch, step)
        self.each.append(float(f"{loss.item():.7g}"))


class LowTraining(Training):
    """Steps under autocast, each under its own: autocast keeps copies of weights until it ends."""

    def step(self, batch: Batch) -> None:
        with torch.autocast("cpu", torch.bfloat16):
            super().step(batch)


KINDS = {"float32": Training, "bfloat16": LowTraining}


def curve(run: Run, precision: str) -> list[float]:
    """Loss of each step, from the first one on."""
    training = KINDS[precision](run, window_of(run.config), "")
    meter = training.meter = Losses(training.meter.objectives)
    training.run_all()
    shutil.rmtree(training.checkpoints)
    return meter.each


def main(home: Path, write: bool) -> None:
    torch.set_num_threads(1)
    run = tiny_run(home, FIRST, overrides=WORLD)
    prepare_run(run)
    curves = {precision: curve(run, precision) for precision in KINDS}
    if write:
        lines = ",\n  ".join(str(loss) for loss in curves["float32"])
        GOLDEN.write_text(f'{{"losses": [\n  {lines}\n]}}\n')
    print(json.dumps(curves))


if __name__ == "__main__":
    main(Path(sys.argv[1]), "--write" in sys.argv)
