"""Checkpoints of a run in training: `step_N/{dense,sparse,rng,loader.json,meta.json}`.

`COMMITTED` is written last; a folder without it does not count and is removed. `resume` continues
the same run exactly; `warm_start` begins a new run from another run's published model.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from model.config import ConfigError
from model.parallel import Engine
from model.snapshot import DENSE, TABLES, write_tensors

log = logging.getLogger(__name__)
COMMITTED = "COMMITTED"
MOMENTS = "moments.safetensors"
KEPT = 2
FORMAT = 1


def save(folder: Path, engine: Engine, loader: dict[str, Any], *, config_hash: str) -> Path:
    """Write step_N below `folder`, keep the last two; `loader` is JSON to resume from."""
    target = folder / f"step_{engine.steps}"
    shutil.rmtree(target, ignore_errors=True)
    dense, sparse = engine.tensors()
    for name, tensors in (("dense", dense), ("sparse", sparse), ("rng", _rng())):
        (target / name).mkdir(parents=True)
        write_tensors(target / name / "state.safetensors", tensors)
    _write(target / "loader.json", json.dumps(loader))
    meta = {"format": FORMAT, "step": engine.steps, "config_hash": config_hash}
    _write(target / "meta.json", json.dumps(meta))
    for path in sorted(target.rglob("*.safetensors")):
        _sync(path)
    _sync(target)
    _write(target / COMMITTED, "")
    _sync(target)
    for old in _committed(folder)[:-KEPT]:
        shutil.rmtree(old)
    return target


def resume(folder: Path, engine: Engine, *, config_hash: str) -> dict[str, Any] | None:
    """Restore the newest committed checkpoint and return its loader state; None without one.

    Restores weights, both optimizers, averages, step and RNG. Uncommitted folders are removed, and
    so are checkpoints of another config: they belong to a run that was asked for differently.
    """
    for path in sorted(folder.glob("step_*")) if folder.is_dir() else []:
        if not (path / COMMITTED).is_file() or _meta(path) != (FORMAT, config_hash):
            log.info("removing %s: not committed, or of another config", path)
            shutil.rmtree(path)
    found = _committed(folder)
    if not found:
        return None
    newest = found[-1]
    engine.load_tensors(
        load_file(newest / "dense" / "state.safetensors"),
        load_file(newest / "sparse" / "state.safetensors"),
    )
    torch.set_rng_state(load_file(newest / "rng" / "state.safetensors")["torch"])
    log.info("resuming from %s", newest)
    state: dict[str, Any] = json.loads((newest / "loader.json").read_text())
    return state


def warm_start(snapshot: Path, engine: Engine) -> None:
    """Take weights and the tables' optimizer state from a published model.

    Tables that the snapshot lacks, or has in another shape, start fresh; its other tables are
    dropped; each is logged. Averages, steps and the dense optimizer begin anew.
    """
    if not (snapshot / TABLES).is_file():
        raise ConfigError(f"{snapshot} holds no model to start from; run pretrain of that day")
    tables, moments = load_file(snapshot / TABLES), load_file(snapshot / MOMENTS)
    own = engine.tables.weights()
    kept = _matching(tables, own, "table")
    engine.set_tables(kept, {n: moments[n] for n in kept if n in moments})
    dense = dict(engine.dense.named_parameters())
    with torch.no_grad():
        for name, weight in _matching(load_file(snapshot / DENSE), dense, "weight").items():
            dense[name].copy_(weight)
    engine.restart_averages()


def save_moments(folder: Path, engine: Engine) -> None:
    """Write what `warm_start` needs beside a snapshot: the tables' optimizer state."""
    write_tensors(folder / MOMENTS, engine.tables.moments())


def _matching(found: dict[str, Tensor], own: Mapping[str, Tensor], what: str) -> dict[str, Tensor]:
    """Those of `found` that exist here in the same shape; a log line for each other one."""
    for name in sorted(own.keys() - found.keys()):
        log.info("%s %s is new and starts fresh", what, name)
    for name in sorted(found.keys() - own.keys()):
        log.info("%s %s is gone and was dropped", what, name)
    same = {n: t for n, t in found.items() if n in own and t.shape == own[n].shape}
    for name in sorted((found.keys() & own.keys()) - same.keys()):
        log.info("%s %s changed its shape and starts fresh", what, name)
    return same


def _committed(folder: Path) -> list[Path]:
    """Committed checkpoints, oldest first."""
    found = [p for p in folder.glob("step_*") if (p / COMMITTED).is_file()]
    return sorted(found, key=lambda p: int(p.name.removeprefix("step_")))


def _meta(path: Path) -> tuple[int, str]:
    meta = json.loads((path / "meta.json").read_text())
    return meta["format"], meta["config_hash"]


def _rng() -> dict[str, Tensor]:
    return {"torch": torch.get_rng_state()}


def _write(path: Path, text: str) -> None:
    with path.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
