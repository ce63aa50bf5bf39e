"""Stages `scaling_tune` and `scaling_point`: one model of the ladder, trained in one pass.

Every point sees the same rows in the same order. Soft labels are the planted probabilities of a
click: apart from evaluation this experiment alone reads the truth, to tell what optimisation
costs from what label noise costs. A point that is killed starts again; one that is finished is
not trained a second time.

Suffixes: N rows of the pass, B rows of a batch, K objectives.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from model.batch import Batch
from model.foundation import FoundationModel, training_loss
from model.inference import forward_all
from model.parallel import Engine
from model.snapshot import num_parameters
from pipeline.evaluation.metrics import normalized_entropy
from pipeline.evaluation.scaling_score import score_of
from pipeline.evaluation.truth import with_terms
from pipeline.mixing.loader import Loader
from pipeline.mixing.synthetic_scaling import TERMS
from pipeline.pretraining.scaling.rates import rates_of
from pipeline.pretraining.scaling.sizing import Lengths, flops, ladder_of, sized
from pipeline.pretraining.setup import build_engine, prior_of
from pipeline.run.codec import digest, to_dict
from pipeline.run.config import RunConfig
from pipeline.run.errors import DataError
from pipeline.run.manifest import Manifest, Outcome, need_manifest, produce, write_json
from pipeline.run.paths import Run
from pipeline.run.progress import Progress
from pipeline.run.scaling import Point, point_of

Floats = NDArray[np.float64]
RESULT = "result.json"
LAST_PART = 4  # the forecast error of the last quarter of the pass chooses the learning rates
SCORING_ROWS = 2_048
LENGTHS = 4_096  # rows whose histories a size is measured on


def scaling_tune(run: Run, unit: str) -> Manifest:
    """Train a trial of learning rates; publish what it forecast of rows not yet trained on."""
    return _stage(run, "scaling_tune", unit)


def scaling_point(run: Run, unit: str) -> Manifest:
    """Train a point of the ladder; publish its NE, part scores, FLOPs and sums per user block."""
    return _stage(run, "scaling_point", unit)


def _stage(run: Run, stage: str, unit: str) -> Manifest:
    point, ladder = point_of(unit), ladder_of(run.config)
    dense_lr, sparse_lr = rates_of(run, point)
    train = replace(
        run.config.train,
        seed=point.seed,
        dense_lr=dense_lr,
        sparse_lr=sparse_lr,
        batch_size=ladder.batch_size,
    )
    settings = [
        point,
        ladder.mflops[point.rung],
        replace(train, threads=1),  # as many threads as one likes
        run.config.model,
        run.config.features,
    ]
    return produce(
        run.output(stage, unit),
        stage=stage,
        unit=unit,
        inputs={"mix": need_manifest(run.output("mix")).fingerprint},
        settings=digest(settings),
        build=lambda folder: _build(run, replace(run.config, train=train), point, folder),
    )


def _build(run: Run, config: RunConfig, point: Point, folder: Path) -> Outcome:
    torch.set_num_threads(config.train.threads)
    loader = Loader(run, "train", batch_size=config.train.batch_size)
    config = sized(config, point, _lengths(loader))
    at = Run(folder=run.folder, config=config)
    labels_N = _labels(run, loader, point)
    trained = _train(at, point, loader, labels_N)
    result: dict[str, Any] = {
        "point": to_dict(point),
        "mflop": flops(config, trained.lengths) / 1e6,
        "rows": loader.num_rows,
        "model": to_dict(config.model),
        "rates": [config.train.dense_lr, config.train.sparse_lr],
        "parameters": {
            "dense": num_parameters(trained.engine.dense),
            "tables": sum(t.numel() for t in trained.engine.tables.weights().values()),
        },
        "forecast_ne": trained.forecast_ne,
    }
    if point.trial is None:
        result |= _scored(at, trained.engine.export())
    write_json(folder / RESULT, result)
    return Outcome(
        rows=loader.num_rows,
        figures={"rows_per_s": loader.num_rows / trained.seconds, "mflop": result["mflop"]},
    )


@dataclass(frozen=True, kw_only=True)
class _Trained:
    engine: Engine
    forecast_ne: float | None  # None: the loss was no number any more
    lengths: Lengths  # of every row of the pass
    seconds: float


def _train(run: Run, point: Point, loader: Loader, labels_N: Floats) -> _Trained:
    """One pass; every batch is forecast before it is trained on."""
    engine = build_engine(run)
    engine.dense.heads.set_prior(prior_of(loader.columns, run.config.objectives))
    engine.restart_averages()
    weights_K = torch.ones(len(run.config.objectives))
    soft_N = torch.from_numpy(labels_N.astype(np.float32))
    forecast_N = np.zeros(loader.num_rows)
    lengths: dict[str, list[NDArray[np.int64]]] = {e.name: [] for e in run.config.features.events}
    broken, began = False, time.monotonic()
    with Progress(point.unit, loader.num_batches) as progress:
        for batch in loader.batches():
            batch = replace(batch, labels_BK=soft_N[batch.row_B][:, None])
            output = engine.forward(batch)
            loss = training_loss(output, batch, weights_K)
            if not torch.isfinite(loss):
                broken = True
                break
            engine.backward(loss)
            engine.step()
            forecast_N[batch.row_B] = output.logits_BK[:, 0].detach().sigmoid().numpy()
            for name, events in batch.events.items():
                lengths[name].append(events.lengths_B.numpy())
            progress.step(1, loss=loss.item())
    if broken and point.trial is None:
        train = run.config.train
        raise DataError(
            f"{point.unit}: the loss is no number at step {engine.steps}, at learning rates "
            f"{train.dense_lr} and {train.sparse_lr}; add lower ones to scaling.trials"
        )
    last = slice(loader.num_rows * (LAST_PART - 1) // LAST_PART, None)
    forecast_ne = normalized_entropy(labels_N[last], forecast_N[last])
    return _Trained(
        engine=engine,
        forecast_ne=None if broken else float(f"{forecast_ne:.7g}"),
        lengths={name: np.concatenate(parts) for name, parts in lengths.items()},
        seconds=time.monotonic() - began,
    )


def _labels(run: Run, loader: Loader, point: Point) -> Floats:
    """What the point learns from, in loader order."""
    if point.labels == "hard":
        return loader.columns["y_click"].astype(np.float64)
    return _truth(run, loader)["true_click"].to_numpy()


def _truth(run: Run, loader: Loader) -> pl.DataFrame:
    rows = pl.DataFrame({n: loader.columns[n] for n in ("impression_id", "ts_us")})
    return with_terms(run, rows, TERMS)


def _lengths(loader: Loader) -> Lengths:
    """Histories of rows from all over the pass."""
    step = max(1, loader.num_batches * loader.batch_size // LENGTHS)
    found: dict[str, list[NDArray[np.int64]]] = {}
    for index in range(0, loader.num_batches, max(1, step)):
        for name, events in loader.batch(index).events.items():
            found.setdefault(name, []).append(events.lengths_B.numpy())
    return {name: np.concatenate(parts) for name, parts in found.items()}


def _scored(run: Run, model: FoundationModel) -> Mapping[str, Any]:
    """Scores of the averaged weights on the held-out days."""
    loader = Loader(run, "holdout", batch_size=SCORING_ROWS)

    def forward(batch: Batch) -> Floats:
        return model(batch).logits_BK[:, 0].double().numpy()

    logit_N = np.concatenate(list(forward_all(forward, loader.batches(), workers=1)))
    truth = _truth(run, loader)
    return score_of(
        y=loader.columns["y_click"],
        true=truth["true_click"].to_numpy(),
        logit=logit_N,
        users=loader.columns["user_id"],
        terms={name: truth[f"term_{name}"].to_numpy() for name in TERMS},
    )
