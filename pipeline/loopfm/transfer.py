"""Stage `transfer`: train a surface's students, with and without help of the foundation model.

`transfer.arms` names them (pipeline/loopfm/arms.py): by default none, kd (distillation, arXiv
2502.17494), loopfm (the user's stored representations, arXiv 2605.29280) and kd_loopfm.
Suffixes: R rows, K objectives.
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

from model.config import FeatureSet
from model.snapshot import write_tensors
from model.student import Student
from pipeline.evaluation.metrics import calibration, normalized_entropy
from pipeline.loopfm.arms import Arm, arms_named
from pipeline.loopfm.lake import representation_inputs
from pipeline.loopfm.scoring import torch_threads
from pipeline.loopfm.served import SHAPE, WEIGHTS, write_mlmodel
from pipeline.loopfm.store_fields import fields_of, read_served
from pipeline.loopfm.student_rows import SurfaceRows, surface_rows, with_matches
from pipeline.loopfm.training import (
    StudentRows,
    predict_rows,
    read_by,
    train_student,
)
from pipeline.mixing.frames import write_frame
from pipeline.run.errors import ConfigError
from pipeline.run.manifest import Manifest, Outcome, need_manifest, produce, write_json
from pipeline.run.paths import Run
from pipeline.run.progress import Progress
from pipeline.run.window import window_of

log = logging.getLogger(__name__)
# Surfaces are trained side by side, and results depend on the number of threads.
THREADS = 1


def transfer(run: Run, unit: str) -> Manifest:
    """Train all arms and seeds of one surface in one pass over time and score the last hours.

    Writes arms/<arm>/seed=S/ (weights.safetensors, student.json), predictions.parquet (one row
    per scored impression) and metrics.json. Trained on are labels known before the cut, scored
    those known from it on.
    """
    if unit not in run.config.surfaces:
        raise ConfigError(
            f"unit must be a surface, got {unit!r}; choose among {list(run.config.surfaces)}"
        )
    config = run.config
    arms = arms_named(config.transfer.arms)
    raw, served = any(arm.raw for arm in arms), any(arm.served for arm in arms)

    def build(folder: Path) -> Outcome:
        with torch_threads(THREADS):
            features = features_of(run, raw=raw)
            data = surface_rows(run, unit, features=features, raw=raw)
            if served:
                data = with_served(run, unit, data)
            return _run_arms(run, unit, data, folder)

    before = ("mix", "labels", "as_served") if served else ("mix", "labels")
    inputs = {name: need_manifest(run.output(name)).fingerprint for name in before}
    return produce(
        run.output("transfer", unit),
        stage="transfer",
        unit=unit,
        inputs=inputs | representation_inputs(run),
        settings=[config.transfer, config.features, config.objectives, unit, window_of(config)],
        build=build,
    )


def with_served(run: Run, surface: str, data: SurfaceRows) -> SurfaceRows:
    """The rows with the fields that the store would have served to them."""
    table = read_served(run, surface, data.ids)
    fields = fields_of(table, run.config.model.representation_dim)
    return replace(data, rows=replace(data.rows, served=fields))


def features_of(run: Run, *, raw: bool) -> FeatureSet:
    """What a student reads of an impression; with raw history the match counts too."""
    features = run.config.features.for_students()
    return with_matches(features, run.config.features) if raw else features


def _run_arms(run: Run, surface: str, data: SurfaceRows, folder: Path) -> Outcome:
    config = run.config
    train_R = np.flatnonzero(data.train_RK.any(axis=1))
    test_R = np.flatnonzero(data.test_RK.any(axis=1))
    train, test = (data.rows.part(torch.from_numpy(rows)) for rows in (train_R, test_R))
    seeds = range(config.transfer.seed, config.transfer.seed + config.transfer.seeds)
    arms = arms_named(config.transfer.arms)
    found: dict[str, np.ndarray] = {"fm": test.soft_RK.numpy()}
    with Progress(f"transfer {surface}", len(arms) * len(seeds)) as progress:
        for arm in arms:
            for seed in seeds:
                student = trained(run, train, arm, seed)
                _save(folder / "arms" / arm.name / f"seed={seed}", student, arm, run, surface)
                p_RK = predict_rows(student, read_by(arm, test, seed), arm)
                found[f"{arm.name}_s{seed}"] = p_RK.numpy()
                progress.step()
    frame = _predictions(run, data, test_R, found)
    write_frame(folder / "predictions.parquet", frame)
    with_history = (test.loop.end_B > test.loop.begin_B).float().mean()
    metrics = {
        "surface": surface,
        "rows_trained": len(train_R),
        "rows_scored": len(test_R),
        "with_history": float(with_history),
        "arms": {name: _label_metrics(frame, name, run) for name in found},
    }
    write_json(folder / "metrics.json", metrics)
    return Outcome(rows=len(frame), figures=metrics)


def trained(run: Run, rows: StudentRows, arm: Arm, seed: int) -> Student:
    """An arm's student by the run's config, on rows of a surface."""
    return train_student(
        read_by(arm, rows, seed),
        arm,
        features=features_of(run, raw=arm.raw),
        objectives=run.config.objectives,
        config=run.config.transfer,
        seed=seed,
    )


def _save(folder: Path, student: Student, arm: Arm, run: Run, surface: str) -> None:
    folder.mkdir(parents=True)
    write_tensors(folder / WEIGHTS, student.state_dict())
    write_mlmodel(folder.parent, f"seed={run.config.transfer.seed}")
    shape = {
        "arm": arm.name,
        "surface_index": run.config.surfaces.index(surface),
        "config": asdict(student.config),
        "features": asdict(features_of(run, raw=arm.raw)),
        "objectives": [asdict(o) for o in run.config.objectives],
    }
    (folder / SHAPE).write_text(json.dumps(shape, indent=1, sort_keys=True))


def _predictions(
    run: Run, data: SurfaceRows, test_R: np.ndarray, found: dict[str, np.ndarray]
) -> pl.DataFrame:
    columns: dict[str, Any] = {}
    for k, objective in enumerate(run.config.objectives):
        mask_R = data.test_RK[test_R, k]
        columns[f"y_{objective.name}"] = np.where(mask_R, data.y_RK[test_R, k], 0).astype(np.int8)
        columns[f"m_{objective.name}"] = mask_R
    for name, p_RK in found.items():
        for k, objective in enumerate(run.config.objectives):
            columns[f"p_{name}_{objective.name}"] = p_RK[:, k].astype(np.float32)
    return pl.concat([data.ids[test_R], pl.DataFrame(columns)], how="horizontal")


def _label_metrics(frame: pl.DataFrame, name: str, run: Run) -> dict[str, Any]:
    """NE and calibration against labels; null where a base rate is 0 or 1."""
    figures: dict[str, Any] = {}
    for objective in (o.name for o in run.config.objectives):
        rows = frame.filter(pl.col(f"m_{objective}"))
        y, p = rows[f"y_{objective}"].to_numpy(), rows[f"p_{name}_{objective}"].to_numpy()
        both = 0 < y.sum() < len(y)
        figures[objective] = {
            "rows": len(y),
            "positives": int(y.sum()),
            "ne": normalized_entropy(y, p) if both else None,
            "calibration": calibration(y, p) if both else None,
        }
    return figures
