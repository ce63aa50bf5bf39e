"""What precedes training: the engine from a run's config, the heads' prior, the banner."""

from __future__ import annotations

import logging
import math
import platform
from collections.abc import Mapping
from importlib.metadata import version

import numpy as np
import torch
from torch import Tensor

import kernels
from model.config import Objective
from model.flops import flops_per_row
from model.foundation import FoundationModel
from model.parallel import Engine, EngineConfig
from model.precision import precision_note
from model.ranks import total, world_size
from pipeline.run.manifest import need_manifest
from pipeline.run.paths import Run

log = logging.getLogger(__name__)
PRIOR_ROWS = 20_000
PRIOR_POSITIVES = 10.0
NO_PRIOR = 0.01  # an objective without a mature label yet is taken to be rare
STACK = ("torch", "torchrec", "fbgemm-gpu-cpu", "deepspeed")


def build_engine(run: Run) -> Engine:
    """A seeded model of the run's config in its training engine."""
    config, train = run.config, run.config.train

    def build() -> FoundationModel:
        torch.manual_seed(train.seed)
        return FoundationModel(
            config.features, config.objectives, len(config.surfaces), config.model
        )

    return Engine(
        build,
        EngineConfig(
            batch_size=train.batch_size,
            dense_lr=train.dense_lr,
            sparse_lr=train.sparse_lr,
            weight_decay=train.weight_decay,
            warmup_steps=train.warmup_steps,
            clip_norm=train.clip_norm,
            ema_decay=train.ema_decay,
            ranks=train.ranks,
            zero_stage=train.zero_stage,
            layout=train.layout,
        ),
    )


def prior_of(
    columns: Mapping[str, np.ndarray], objectives: tuple[Objective, ...], num_surfaces: int
) -> Tensor:
    """Base rates [Z, K] over each objective's first mature labels among the rows trained first.

    Every rank counts its part of them in its own rows.

    Where sampling is made up for by a shift, a negative stands for exp(shift) of them. Delayed
    labels are not mature in the first rows, so each objective takes rows of its own. A surface
    counts as if it had `PRIOR_POSITIVES` more at the rate of all surfaces.
    """
    rates = []
    for objective in objectives:
        mature = np.flatnonzero(columns[f"m_{objective.name}"])[: PRIOR_ROWS // world_size()]
        y, weight = (columns[f"{p}_{objective.name}"][mature].astype(np.float64) for p in "yw")
        weight = np.where(y > 0, weight, weight * np.exp(columns["shift"][mature]))
        surface = columns["surface"][mature]
        counts = [np.bincount(surface, w, num_surfaces) for w in (weight, y * weight)]
        seen_Z, bought_Z = total(torch.from_numpy(np.stack(counts))).numpy()
        overall = bought_Z.sum() / seen_Z.sum() if bought_Z.any() else NO_PRIOR
        rates.append((bought_Z + PRIOR_POSITIVES) / (seen_Z + PRIOR_POSITIVES / overall))
    return torch.from_numpy(np.stack(rates, axis=1))


def banner(run: Run, engine: Engine, num_rows: int, config_hash: str) -> None:
    """Log what is about to be trained, on what, with which libraries."""
    config = run.config
    longest = {e.name: e.max_len for e in config.features.events}
    flops = flops_per_row(
        config.model, config.features, len(config.objectives), longest, len(config.surfaces)
    )
    backend, reason = kernels.choose_backend()
    train = config.train
    tables = sum(math.prod(shape) for shape in engine.tables.shapes.values())
    lines = {
        "config": config_hash,
        "data": need_manifest(run.output("mix")).fingerprint[:12],
        "rows": f"{num_rows} from step {engine.steps}",
        "model": f"{engine.dense_part.num_parameters} dense and {tables} table parameters, "
        f"{flops / 1e6:.2f} MFLOP forward for a row with full histories",
        "device": f"cpu, {torch.get_num_threads()} threads, {platform.machine()}",
        "ranks": f"{train.ranks}, ZeRO {train.zero_stage}, tables by {train.layout.sharding}",
        "kernels": f"{backend} ({reason})",
        "precision": precision_note(engine.dense),
        "versions": ", ".join(f"{name} {_version(name)}" for name in STACK),
    }
    for name, text in lines.items():
        log.info("%-9s %s", name, text)


def _version(name: str) -> str:
    try:
        return version(name)
    except ImportError:
        return "absent"
