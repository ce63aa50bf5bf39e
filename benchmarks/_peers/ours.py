"""Our side: a trunk of `model.arch` in the trainer of `pretrain`, on the peers' rows."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from model.config import FeatureSet, ModelConfig
from model.snapshot import num_parameters
from pipeline.evaluation.scoring import SCORING_BATCH, score
from pipeline.mixing.loader import Loader
from pipeline.pretraining.pretrain import Training
from pipeline.run.config import RunConfig
from pipeline.run.paths import Run, open_run
from pipeline.run.window import window_of

SPARSE_RATE = 10.0  # times the dense rate, as in the presets
SHARED = ("land", "ingest", "labels", "timelines", "mix")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One training of ours; the rows are those of label time [begin_us, end_us).

    Rows of `scored` (selection, begin, end of the label time) are predicted; no name, none are.
    """

    run: str
    model: dict[str, Any]
    tower: dict[str, int]
    begin_us: int
    end_us: int
    scored: tuple[str, int | None, int | None]
    answer: str
    rate: float
    seed: int
    num_threads: int
    batch_size: int


def play(**arguments: Any) -> dict[str, Any]:
    """Train and predict; writes predictions (.npy) and returns what `side.play` writes."""
    entry = Entry(**arguments)
    run = forked(open_run(entry.run), entry)
    torch.set_num_threads(entry.num_threads)
    window = window_of(run.config)
    # one segment: no representation epoch is frozen on the way
    window = replace(
        window, train_begin=entry.begin_us, students_begin=entry.begin_us, cut=entry.end_us
    )
    training = Training(run, window, "peers")
    began = time.monotonic(), time.process_time()
    training.run_all()
    wall_s, processor_s = time.monotonic() - began[0], time.process_time() - began[1]
    model = training.engine.export()
    selection, begin_us, end_us = entry.scored
    if selection:
        loader = Loader(
            run,
            "train" if selection == "train" else "holdout",
            begin_us=begin_us,
            end_us=end_us,
            batch_size=SCORING_BATCH,
            order="time" if selection == "train" else "none",
        )
        np.save(f"{entry.answer}.npy", score({"p": model}, loader).by_model["p"][:, 0])
    shutil.rmtree(run.folder)
    return {
        "rows": training.meter.rows,
        "wall_s": wall_s,
        "processor_s": processor_s,
        "parameters": num_parameters(model),
    }


def forked(run: Run, entry: Entry) -> Run:
    """A run of its own on the same stages: another model, other training settings."""
    folder = run.folder.with_name(f"{run.folder.name}-{Path(entry.answer).name}")
    shutil.rmtree(folder, ignore_errors=True)
    for stage in SHARED:
        shutil.copytree(run.output(stage), folder / stage, copy_function=os.link)
    return Run(folder=folder, config=resized(run.config, entry))


def resized(config: RunConfig, entry: Entry) -> RunConfig:
    """The config with the entry's model and towers, trained as it says."""
    train = replace(
        config.train,
        dense_lr=entry.rate,
        sparse_lr=entry.rate * SPARSE_RATE,
        seed=entry.seed,
        threads=entry.num_threads,
        batch_size=entry.batch_size,
    )
    features = with_tower(config.features, entry.tower)
    return replace(config, model=ModelConfig(**entry.model), train=train, features=features)


def with_tower(features: FeatureSet, tower: dict[str, int]) -> FeatureSet:
    """The features with fields of their event type replaced."""
    events = tuple(replace(event, **tower) for event in features.events)  # type: ignore[arg-type]
    return replace(features, events=events)
