"""A planted world with long memory, and Kunlun trained on it with more and more context.

The world is the variant of the scaling tests (docs/planted.md), whose click logit reads a user's
last 200 events with weights that fall to 1/e in two days: about five days of events. Match counts,
which would tell of events beyond the context, are left out. Labels are the planted probabilities,
as the ladder's soft labels: what is left is what the context tells, not what clicks blur.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl
import torch

from benchmarks._chain import up_to_timelines
from benchmarks._paired import write_scores
from benchmarks._steps import step
from benchmarks._trials import DAY, forked
from model.batch import Batch
from model.config import FeatureSet
from pipeline.evaluation.truth import with_truth
from pipeline.mixing.loader import Loader
from pipeline.mixing.mix import mix
from pipeline.pretraining.setup import build_engine, prior_of
from pipeline.run.config import with_overrides
from pipeline.run.paths import Run, open_run
from pipeline.run.presets import preset
from pipeline.run.resolve import resolve

SHORTEST, TIMES = 8, (1, 2, 5, 25)
CONTEXTS = tuple(SHORTEST * times for times in TIMES)
MEMORY_DAYS, EVENTS_A_DAY, HISTORY_DAYS = 2.0, 40.0, 18
BATCH_SIZE = 64


@dataclass(frozen=True, kw_only=True)
class Size:
    """How large the world is."""

    rows_per_day: int
    users: int
    days: int


FULL = Size(rows_per_day=16_000, users=1_600, days=8)
QUICK = Size(rows_per_day=6_000, users=600, days=7)


def world(home: str, quick: bool) -> str:
    """The folder of a run up to its mix, whose rows see the longest context."""
    size = QUICK if quick else FULL
    changes: dict[str, Any] = {
        "source.planted.rows_per_day": size.rows_per_day,
        "source.planted.users": size.users,
        "source.planted.categories": 6,
        "source.planted.ads": 60,
        "source.planted.organic_per_user_day": EVENTS_A_DAY,
        "source.planted.memory_events": CONTEXTS[-1],
        "source.planted.memory_days": MEMORY_DAYS,
        "window.bootstrap_days": size.days,
        "window.history_days": HISTORY_DAYS,
        "train.batch_size": BATCH_SIZE,
        "warm_start": False,
    }
    config = with_overrides(preset(DAY, "small", "scaling"), changes)
    run = open_run(
        resolve(replace(config, features=_context(config.features, CONTEXTS[-1])), Path(home))
    )
    up_to_timelines(run)
    mix(run)
    return str(run.folder)


def _context(features: FeatureSet, length: int) -> FeatureSet:
    """Towers that read so many events, and no match counts."""
    events = tuple(replace(event, max_len=length) for event in features.events)
    return replace(features, events=events, matches=())


def train(folder: str, arm: str, seed: int) -> dict[str, Any]:
    """Train on a context of `arm` events and score the held-out days."""
    base = open_run(folder)
    torch.set_num_threads(1)
    config = with_overrides(base.config, {"train.seed": seed, "train.threads": 1})
    config = replace(config, features=_context(config.features, int(arm)))
    run = forked(base, f"context{arm}-{seed}", config)
    loader = Loader(run, "train", batch_size=BATCH_SIZE)
    engine = build_engine(run)
    engine.dense.heads.set_prior(prior_of(loader.columns, config.objectives, len(config.surfaces)))
    engine.restart_averages()
    began = time.process_time()
    for batch in _soft(run, loader):
        step(engine, batch)
    spent = time.process_time() - began
    scores = write_scores(run, {"p_": engine.export()})
    return {"scores": scores, "rows": loader.num_rows, "rows_per_s": loader.num_rows / spent}


def _soft(run: Run, loader: Loader) -> Iterator[Batch]:
    """Batches whose labels are the planted probabilities of a click."""
    rows = pl.DataFrame({n: loader.columns[n] for n in ("impression_id", "ts_us")})
    true_N = torch.from_numpy(with_truth(run, rows)["true_click"].to_numpy(writable=True)).float()
    for batch in loader.batches():
        yield replace(batch, labels_BK=true_N[batch.row_B][:, None])
