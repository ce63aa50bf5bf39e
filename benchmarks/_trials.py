"""Trials of `tuning`: one planted world, mixed once, and a training per setting of the dials.

A trial is scored on the last hours before the cut, each part of them by the averaged weights before
it is trained on (as calibration does): never on the holdout. `ne` is against labels; on planted
logs `ne_true`, against the planted probabilities of the same rows, has no label noise. `tune` takes
any run that is mixed and has `window.calibration_hours`.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

from benchmarks._chain import up_to_timelines
from model.flops import flops_per_row
from model.snapshot import num_parameters
from pipeline.evaluation.metrics import normalized_entropy
from pipeline.evaluation.truth import TRUE_PREFIX, with_truth
from pipeline.mixing.loader import Loader
from pipeline.mixing.mix import mix
from pipeline.pretraining.calibration import Scored
from pipeline.pretraining.pretrain import Training
from pipeline.run.codec import digest
from pipeline.run.config import RunConfig, with_overrides
from pipeline.run.errors import ConfigError
from pipeline.run.paths import Run, open_run
from pipeline.run.presets import preset
from pipeline.run.resolve import resolve
from pipeline.run.window import window_of

DAY = "2026-11-29"
KEPT = ("timelines", "mix")
OBJECTIVE = "click"


@dataclass(frozen=True, kw_only=True)
class World:
    """How large the planted world is."""

    rows_per_day: int
    users: int
    ads: int
    days: int
    validation_hours: int


FULL = World(rows_per_day=20_000, users=2_500, ads=200, days=5, validation_hours=48)
QUICK = World(rows_per_day=4_000, users=600, ads=80, days=4, validation_hours=36)


@dataclass(frozen=True, kw_only=True)
class Dials:
    """What a trial sets; the same trials for every arch."""

    dense_lr: float
    sparse_lr: float
    width: int
    dropout: float


# ranges of the design: logarithmic, logarithmic, a choice, linear
DENSE_LR, SPARSE_LR, WIDTHS, DROPOUT = (5e-4, 1e-2), (1e-2, 1e-1), (8, 16, 24, 32), 0.2


def design(num_trials: int, config: RunConfig, seed: int = 0) -> list[Dials]:
    """The config's own dials, then points of a scrambled Sobol sequence."""
    own = Dials(
        dense_lr=config.train.dense_lr,
        sparse_lr=config.train.sparse_lr,
        width=config.model.width,
        dropout=config.model.dropout,
    )
    if num_trials < 1:
        raise ConfigError(f"trials must be at least 1, got {num_trials}; use 8")
    points = torch.quasirandom.SobolEngine(4, scramble=True, seed=seed).draw(num_trials - 1)
    return [own, *(_dials(point) for point in points.tolist())]


def _dials(point: list[float]) -> Dials:
    dense, sparse, width, dropout = point
    return Dials(
        dense_lr=_significant(DENSE_LR[0] * (DENSE_LR[1] / DENSE_LR[0]) ** dense),
        sparse_lr=_significant(SPARSE_LR[0] * (SPARSE_LR[1] / SPARSE_LR[0]) ** sparse),
        width=WIDTHS[int(width * len(WIDTHS))],
        dropout=round(dropout * DROPOUT, 2),
    )


def _significant(value: float) -> float:
    return float(f"{value:.2g}")


def prepared(home: Path, world: World, seed: int) -> Run:
    """A run of the world, up to the mix, which all trials share."""
    config = with_overrides(
        preset(DAY, "small"),
        {
            "source.planted.seed": seed,
            "source.planted.rows_per_day": world.rows_per_day,
            "source.planted.users": world.users,
            "source.planted.ads": world.ads,
            "window.bootstrap_days": world.days,
            "window.student_days": 2,
            "window.calibration_hours": world.validation_hours,
            "warm_start": False,
        },
    )
    run = open_run(resolve(config, home))
    up_to_timelines(run)
    mix(run)
    return run


def forked(base: Run, name: str, config: RunConfig) -> Run:
    """A run folder beside `base` with another config and the same timelines and mix."""
    run = Run(folder=base.folder.with_name(name), config=config)
    for stage in KEPT:
        shutil.copytree(base.output(stage), run.output(stage), copy_function=os.link)
    return run


def tune(base: Run, arch: str, num_trials: int, seed: int) -> Iterator[dict[str, Any]]:
    """The design's trials of one arch, one after the other."""
    for number, dials in enumerate(design(num_trials, base.config, seed)):
        yield {"trial": number} | run_trial(base, arch, dials, seed)


def error_of(trial: dict[str, Any]) -> float:
    """What a trial is chosen by: NE against the truth where it is known, else against labels."""
    return float(trial.get("ne_true", trial["ne"]))


def run_trial(base: Run, arch: str, dials: Dials, seed: int) -> dict[str, Any]:
    """Train `arch` with these dials on the rows of `base`; what it reached and what it cost."""
    changes = {
        "model.arch": arch,
        "model.width": dials.width,
        "model.dropout": dials.dropout,
        "train.dense_lr": dials.dense_lr,
        "train.sparse_lr": dials.sparse_lr,
        "train.seed": seed,
    }
    return {"arch": arch, **asdict(dials), **run_changed(base, changes)}


def run_changed(base: Run, changes: dict[str, Any]) -> dict[str, Any]:
    """Train with some fields of the config changed; what it reached and what it cost."""
    config = with_overrides(base.config, changes)
    run = forked(base, f"trial-{config.run_name}", config)
    began = time.process_time()
    training = Training(run, window_of(config), digest(config))
    training.run_all()
    spent = time.process_time() - began
    found = _cost(training, config) | _score(training, run)
    shutil.rmtree(run.folder)
    return {**found, "rows": training.meter.rows, "seconds": round(spent, 1)}


def _cost(training: Training, config: RunConfig) -> dict[str, Any]:
    longest = {e.name: e.max_len for e in config.features.events}
    counts = len(config.objectives), longest, len(config.surfaces)
    flops = flops_per_row(config.model, config.features, *counts)
    return {
        "dense_parameters": num_parameters(training.engine.dense),
        "mflop": round(flops / 1e6, 3),
    }


def _score(training: Training, run: Run) -> dict[str, float]:
    calibrator = training.calibrator
    if calibrator is None:
        raise ConfigError("no validation hours to score; raise window.calibration_hours")
    names: list[str] = [o.name for o in run.config.objectives]
    place = names.index(OBJECTIVE)
    rows = _validation_rows(calibrator.loader, calibrator.parts)
    return _errors(calibrator.scored(), place, with_truth(run, rows))


def _validation_rows(loader: Loader, parts: list[range]) -> pl.DataFrame:
    bounds = slice(parts[0].start * loader.batch_size, parts[-1].stop * loader.batch_size)
    return pl.DataFrame({n: loader.columns[n][bounds] for n in ("impression_id", "ts_us")})


def _errors(scored: Scored, place: int, rows: pl.DataFrame) -> dict[str, float]:
    weights_N = scored.weights_NK[:, place]
    known_N = weights_N > 0
    p_N = 1.0 / (1.0 + np.exp(-scored.logits_NK[known_N, place].astype(np.float64)))
    judged = {"ne": scored.labels_NK[:, place]}
    if f"{TRUE_PREFIX}{OBJECTIVE}" in rows.columns:
        judged["ne_true"] = rows[f"{TRUE_PREFIX}{OBJECTIVE}"].to_numpy()
    errors = {
        name: round(normalized_entropy(y_N[known_N], p_N, weights_N[known_N]), 5)
        for name, y_N in judged.items()
    }
    return {"validation_rows": int(known_N.sum()), **errors}
