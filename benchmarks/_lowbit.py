"""The arms of `mxfp8`: one planted world, and trainings that differ in their rounding alone.

`float32` is the base; `again` is float32 from weights that differ by 1e-6 of themselves, which
shows how far two equal trainings drift apart; `mxfp8` rounds every layer that can be; `served` is
the base's snapshot, read in MXFP8; `coarse` rounds the same layers to seven levels per tensor.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks._paired import write_scores
from benchmarks._trials import World, forked, prepared
from model.foundation import FoundationModel
from model.precision import Linear
from model.snapshot import load_snapshot
from pipeline.pretraining.pretrain import Training
from pipeline.run.codec import digest
from pipeline.run.config import with_overrides
from pipeline.run.paths import Run, open_run
from pipeline.run.window import window_of

FULL = World(rows_per_day=24_000, users=3_000, ads=200, days=5, validation_hours=36)
QUICK = World(rows_per_day=12_000, users=1_500, ads=120, days=4, validation_hours=36)
BASE, AGAIN, MXFP8, SERVED, COARSE = "float32", "again", "mxfp8", "served", "coarse"
TRAINED = (BASE, AGAIN, MXFP8, COARSE)
LOW = {"model.precision": "mxfp8", "model.mxfp8_keep_last": 0}
NUDGE = 1e-6
LEVELS = 3  # on either side of zero


def world(home: str, quick: bool) -> str:
    """The folder of a run up to its mix, which all arms share."""
    return str(prepared(Path(home), QUICK if quick else FULL, seed=0).folder)


def train(folder: str, arm: str, seed: int) -> str:
    """Train one arm on the world of a run and score its holdout; the path of the scores."""
    base = open_run(folder)
    changes = {"train.seed": seed, "train.threads": 1, **(LOW if arm in (MXFP8, COARSE) else {})}
    config = with_overrides(base.config, changes)
    run = forked(base, f"{arm}-{seed}", config)
    if arm == COARSE:
        Linear.forward = coarse_forward  # type: ignore[method-assign, assignment]
    training = Training(run, window_of(config), digest(config))
    if arm == AGAIN:
        _nudge(training)
    training.run_all()
    training.publish(run.folder)
    models = {"p_": load_snapshot(run.folder / "model")}
    if arm == BASE:
        models["served_"] = served(run)
    return write_scores(run, models)


def served(run: Run) -> FoundationModel:
    """The float32 snapshot of a run in a model of the MXFP8 recipe."""
    trained, config = load_snapshot(run.folder / "model"), with_overrides(run.config, LOW)
    model = FoundationModel(config.features, config.objectives, len(config.surfaces), config.model)
    model.load_state_dict(trained.state_dict())
    return model.eval().requires_grad_(False)


def coarse_forward(layer: Linear, input: Tensor) -> Tensor:
    """The control's layer: factors and the output's gradient at seven levels per tensor."""
    if not layer.low:
        return F.linear(input, layer.weight, layer.bias)
    output = F.linear(_straight(input), _straight(layer.weight))
    if output.requires_grad:
        output.register_hook(seven_levels)
    return output if layer.bias is None else output + layer.bias


def seven_levels(x: Tensor) -> Tensor:
    """The nearest of -3 .. 3 times a third of the largest size in the tensor."""
    step = x.abs().amax().clamp_min(1e-30) / LEVELS if x.numel() else x.new_ones(())
    return (x / step).round() * step


def _straight(x: Tensor) -> Tensor:
    """Rounded forward, the gradient as if it were not."""
    return x + (seven_levels(x) - x).detach()


def _nudge(training: Training) -> None:
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in training.engine.dense.parameters():
            weight.mul_(1 + NUDGE * torch.randn(weight.shape, generator=draw))
    training.engine.restart_averages()
