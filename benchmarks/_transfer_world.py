"""The worlds of `transfer`: logs, a foundation model frozen on the early days, and its vectors.

Everything runs through the real stages; only the pretraining stops where the students' span
begins, since what the central model would learn later is not what its vectors come from.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks._chain import up_to_timelines
from pipeline.loopfm.represent import represent
from pipeline.mixing.mix import mix
from pipeline.mixing.sources.fetch import SETS, fetch
from pipeline.pretraining.epoch import describe
from pipeline.pretraining.pretrain import Training
from pipeline.run.config import RunConfig, with_overrides
from pipeline.run.manifest import Manifest, Outcome, need_manifest, produce, write_json
from pipeline.run.paths import Run, open_run
from pipeline.run.presets import preset
from pipeline.run.resolve import resolve
from pipeline.run.window import window_of

EVERY_ROW = 1_000.0  # a mixing budget that nothing is sampled out at


def prepared(home: Path, config: RunConfig) -> Run:
    """A run whose log has vectors of a model that saw labels before the students' span only."""
    run = open_run(resolve(replace(config, warm_start=False), home))
    up_to_timelines(run)
    mix(run)
    freeze(run)
    represent(run, "")
    return run


def freeze(run: Run) -> Manifest:
    """The first segment of `pretrain` alone: its epoch, without a final model."""
    config = run.config
    inputs = {"mix": need_manifest(run.output("mix")).fingerprint}
    settings = [config.model, config.train, config.features, config.window, "frozen"]

    def build(folder: Path) -> Outcome:
        torch.set_num_threads(config.train.threads)
        training = Training(run, window_of(config), inputs["mix"])
        training.segments, training.calibrator = training.segments[:1], None
        training.run_all()
        shutil.copytree(training.epoch_folder, folder / "epoch")
        published = run.output("pretrain") / "epoch"
        epoch = describe(run, folder / "epoch", published, window_of(config).students_begin)
        write_json(folder / "summary.json", {"epoch": epoch})
        return Outcome(rows=training.meter.rows, figures=training.meter.figures())

    return produce(
        run.output("pretrain"), stage="pretrain", inputs=inputs, settings=settings, build=build
    )


def planted(home: Path, seed: int, rows_per_day: int, users: int, **changes: Any) -> Run:
    """Ten planted days: the model learns from days 0 to 4, students from 5 to 8, day 9 tests."""
    fixed: dict[str, Any] = {
        "source.planted.seed": seed,
        "source.planted.rows_per_day": rows_per_day,
        "source.planted.users": users,
        "window.bootstrap_days": 10,
        "window.student_days": 5,
        "window.holdout_hours": 24,
        "window.calibration_hours": 0,
        "mix.budget": EVERY_ROW,
        "train.batch_size": 256,  # twice the steps: a weak model would flatter its students
        "train.seed": seed,
        "transfer.quantization": "float32",
        "model.representation_dim": 32,  # as published
    }
    config = with_overrides(preset("2026-11-29", "small"), fixed | changes)
    return prepared(home, config)


def real(home: Path, name: str, day: str, seed: int, **changes: Any) -> Run:
    """A public set that a package brings, with its preset's window."""
    fetch(SETS[name], home)
    fixed = {
        "window.calibration_hours": 0,
        "mix.budget": EVERY_ROW,
        "train.seed": seed,
        "transfer.quantization": "float32",
    }
    return prepared(home, with_overrides(preset(day, "small", name), fixed | changes))
