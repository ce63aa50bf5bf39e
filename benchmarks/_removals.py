"""The arms of `ablation`: full Kunlun, and Kunlun with one of its parts removed or exchanged.

Every arm has two shapes. The *production* shape is the `base` model with the towers that Kunlun's
paper (arXiv 2602.10016) names as its example of event-level personalization and 1,024 events in
each: FLOPs and speed are judged there. The *trained* shape is the `small` model with towers of the
same kind: what can be trained on one processor in minutes, many times.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks._paired import write_scores
from benchmarks._steps import engine_of, jagged, step, synthetic
from benchmarks._trials import DAY, World, forked, prepared
from model.config import EventType
from model.snapshot import load_snapshot
from pipeline.pretraining.pretrain import Training
from pipeline.pretraining.scaling.sizing import flops
from pipeline.run.codec import digest
from pipeline.run.config import RunConfig, with_overrides
from pipeline.run.paths import Run, open_run
from pipeline.run.presets import preset
from pipeline.run.window import window_of

Sizes = Sequence[dict[str, Any]]  # fields of the towers, in the order of the events
FULL = World(rows_per_day=16_000, users=2_000, ads=160, days=5, validation_hours=36)
QUICK = World(rows_per_day=6_000, users=800, ads=100, days=4, validation_hours=24)
WHOLE, SAME_TOWERS = "full", "no_personalization"
REMOVALS: dict[str, dict[str, Any]] = {
    WHOLE: {},
    "no_gdpa": {"pffn": "none"},
    "pma": {"pooling": "pma"},
    "no_sumkron": {"sumkron_rank": 0},
    "no_ad_products": {"ad_products": 0},
    "full_attention": {"attention": "full"},
    "block_attention": {"attention": "block"},
    "no_compskip": {"compskip": False},
    SAME_TOWERS: {},  # all towers take the size of the first
    "no_domain_experts": {"surface_experts": False},
    "user_context": {"gdpa_context": "user", "gdpa_short_path": 0},
}
ARMS_APART = 3  # arms between the first ones of two seeds
EVENTS, ROWS_OF_TABLES = 1_024, 4_096
PRODUCTION: Sizes = (
    {"width": 256, "heads": 8, "tokens": 32, "layers": 3, "window": 100, "max_len": EVENTS},
    {"width": 128, "heads": 4, "tokens": 16, "layers": 2, "window": 50, "max_len": EVENTS},
)
TRAINED: Sizes = (
    {"width": 32, "heads": 4, "tokens": 8, "layers": 0, "window": 8, "max_len": 64},
    {"width": 16, "heads": 2, "tokens": 4, "layers": 1, "window": 4, "max_len": 32},
)


def production(arm: str) -> RunConfig:
    """The config of an arm at the production shape; seeds must outnumber the 32 pooled tokens.

    Tables are cut to `ROWS_OF_TABLES`: their size enters no FLOPs, and all arms fit in memory.
    """
    config = _with_towers(with_overrides(preset(DAY, "base"), {"model.seeds": 64}), PRODUCTION)
    tables = [replace(t, buckets=min(t.buckets, ROWS_OF_TABLES)) for t in config.features.tables]
    features = replace(config.features, tables=tuple(tables))
    return _removed(replace(config, features=features), arm)


def trained_shape(config: RunConfig, arm: str) -> RunConfig:
    """The config of an arm at the trained shape, on the data of `config`."""
    changes = {"model.layers": 3, "model.seeds": 16, "model.attention_block": 16}
    return _removed(_with_towers(with_overrides(config, changes), TRAINED), arm)


def _with_towers(config: RunConfig, sizes: Sizes) -> RunConfig:
    pairs = zip(config.features.events, sizes, strict=True)
    return _with_events(config, [replace(event, **size) for event, size in pairs])


def _with_events(config: RunConfig, events: Sequence[EventType]) -> RunConfig:
    return replace(config, features=replace(config.features, events=tuple(events)))


def _removed(config: RunConfig, arm: str) -> RunConfig:
    if arm == SAME_TOWERS:
        events = config.features.events
        names = ("width", "heads", "tokens", "layers", "window")
        size: dict[str, Any] = {name: getattr(events[0], name) for name in names}
        config = _with_events(config, [replace(event, **size) for event in events])
    return with_overrides(config, {f"model.{k}": v for k, v in REMOVALS[arm].items()})


def production_mflop(arm: str) -> float:
    """Forward MFLOP of a row with all of its events at the production shape."""
    config = production(arm)
    return flops(config, {e.name: np.array([e.max_len]) for e in config.features.events}) / 1e6


def world(home: str, quick: bool) -> str:
    """The folder of a run up to its mix, which all arms share."""
    return str(prepared(Path(home), QUICK if quick else FULL, seed=0).folder)


def train(folder: str, seed: int) -> dict[str, dict[str, Any]]:
    """Train every arm with a seed on a run's mix; by arm what it took and where its scores are.

    Seeds begin with different arms: they run side by side, and a busy minute is to hit all alike.
    """
    torch.set_num_threads(1)
    arms = list(REMOVALS)
    first = ARMS_APART * seed % len(arms)
    order = arms[first:] + arms[:first]
    return {arm: _train(open_run(folder), arm, seed) for arm in order}


def _train(base: Run, arm: str, seed: int) -> dict[str, Any]:
    changes = {"train.seed": seed, "train.threads": 1}
    config = with_overrides(trained_shape(base.config, arm), changes)
    run = forked(base, f"{arm}-{seed}", config)
    training = Training(run, window_of(config), digest(config))
    began = time.process_time()
    training.run_all()
    spent = time.process_time() - began
    training.publish(run.folder)
    print(f"{arm}, seed {seed}: {spent:.0f} s of processor", file=sys.stderr, flush=True)
    return {
        "scores": write_scores(run, {"p_": load_snapshot(run.folder / "model")}),
        "mflop": _mflop(run, training),
        "rows_per_s": training.meter.rows / spent,
        "rows": training.meter.rows,
    }


def _mflop(run: Run, training: Training) -> float:
    """Forward MFLOP of a trained row, from the lengths that every fourth batch has."""
    batches = [s.batch(i) for s in training.segments for i in range(0, s.num_batches, 4)]
    names = [e.name for e in run.config.features.events]
    lengths = {n: np.concatenate([b.events[n].lengths_B.numpy() for b in batches]) for n in names}
    return flops(run.config, lengths) / 1e6


def race(repeats: int, num_rows: int) -> dict[str, list[float]]:
    """Rows per second of the processor of each arm at the production shape; arms take turns.

    Histories are jagged, half full, one row having all 1,024 events. One step goes before.
    """
    found: dict[str, list[float]] = {arm: [] for arm in REMOVALS}
    engines = {arm: engine_of(production(arm)) for arm in REMOVALS}
    lengths = {e.name: jagged(num_rows, EVENTS, 0) for e in production(WHOLE).features.events}
    batch = synthetic(production(WHOLE), lengths, seed=0)
    for repeat in range(repeats + 1):
        for arm, engine in engines.items():
            seconds = step(engine, batch)
            if repeat:
                found[arm].append(num_rows / seconds)
    return found
