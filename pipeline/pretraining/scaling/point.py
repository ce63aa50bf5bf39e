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
from dataclasses import replace
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
    lengths = _lengths(loader)
    config = sized(config, point, lengths)
    at = Run(folder=run.folder, config=config)
    engine = build_engine(at)
    prior_ZK = prior_of(loader.columns, config.objectives, len(config.surfaces))
    engine.dense.heads.set_prior(prior_ZK)
    engine.restart_averages()
    labels_N, began = _labels(run, loader, point), time.monotonic()
    forecast_N = _train(engine, loader, labels_N, point)
    rows_per_s = loader.num_rows / (time.monotonic() - began)
    result: dict[str, Any] = {
        "point": to_dict(point),
        "mflop": flops(config, lengths) / 1e6,
        "rows": loader.num_rows,
        "model": to_dict(config.model),
        "rates": [config.train.dense_lr, config.train.sparse_lr],
        "parameters": {
            "dense": num_parameters(engine.dense),
            "tables": sum(t.numel() for t in engine.tables.weights().values()),
        },
        "forecast_ne": None if forecast_N is None else _late_ne(labels_N, forecast_N),
    }
    if point.trial is None:
        result |= _scored(at, engine.export())
    write_json(folder / RESULT, result)
    figures = {"rows_per_s": rows_per_s, "mflop": result["mflop"]}
    return Outcome(rows=loader.num_rows, figures=figures)


def _train(engine: Engine, loader: Loader, labels_N: Floats, point: Point) -> Floats | None:
    """One pass; what was forecast of each row before it was trained on. None: a trial diverged."""
    weights_K = torch.ones(len(loader.objectives))
    soft_N = torch.from_numpy(labels_N.astype(np.float32))
    forecast_N = np.zeros(loader.num_rows)
    with Progress(point.unit, loader.num_batches) as progress:
        for batch in loader.batches():
            batch = replace(batch, labels_BK=soft_N[batch.row_B][:, None])
            output = engine.forward(batch)
            loss = training_loss(output, batch, weights_K)
            if not torch.isfinite(loss):
                _check_trial(engine, point)
                return None
            engine.backward(loss)
            engine.step()
            forecast_N[batch.row_B] = output.logits_BK[:, 0].detach().sigmoid().numpy()
            progress.step(1, loss=loss.item())
    return forecast_N


def _check_trial(engine: Engine, point: Point) -> None:
    """A trial may diverge, and has lost; for a point of the ladder that is a `DataError`."""
    if point.trial is None:
        raise DataError(
            f"{point.unit}: the loss is no number at step {engine.steps}, at learning rates "
            f"{engine.config.dense_lr} and {engine.config.sparse_lr}; add lower ones to "
            "scaling.trials"
        )


def _late_ne(labels_N: Floats, forecast_N: Floats) -> float:
    last = slice(len(labels_N) * (LAST_PART - 1) // LAST_PART, None)
    return float(f"{normalized_entropy(labels_N[last], forecast_N[last]):.7g}")


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
