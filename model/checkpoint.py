"""Checkpoints of a run in training: `step_N/{dense,sparse,rng,loader.json,meta.json}`.

A part has a file per rank, with the pieces that the rank holds (`model/pieces.py`). `COMMITTED` is
written last; a folder without it does not count and is removed. `resume` continues the same run
exactly; `warm_start` begins a new run from another run's published model.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from model.config import ConfigError
from model.parallel import Engine
from model.pieces import PieceReader, Place, write_pieces
from model.ranks import barrier, rank, world_size
from model.snapshot import DENSE, TABLES, write_tensors

log = logging.getLogger(__name__)
COMMITTED = "COMMITTED"
MOMENTS = "moments.safetensors"
WRITTEN = "written"  # holds a file per rank whose pieces are on disk
PARTS = (DENSE_PART, SPARSE_PART, RNG_PART) = ("dense", "sparse", "rng")
KEPT = 2
FORMAT = 2
LOOK_EVERY_S = 0.01
Pieces = tuple[Mapping[str, Tensor], Mapping[str, Place]]


class Saver:
    """Writes checkpoints beside the training: `save` takes copies, a thread writes them.

    Every rank writes its own pieces. The first rank commits once all of them lie on disk, which is
    a barrier that no rank waits at.
    """

    def __init__(self, folder: Path, *, config_hash: str) -> None:
        self.folder, self.config_hash = folder, config_hash
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing: Future[None] | None = None
        self._places: list[dict[str, Place]] = []
        self._copies: list[dict[str, Tensor]] = []

    def save(self, engine: Engine, loader: dict[str, Any]) -> Path:
        """Begin step_N; `loader` is JSON to resume from. All ranks take part.

        Waits for the checkpoint before; a failure to write that one is raised here.
        """
        self.wait()
        target = self.folder / f"step_{engine.steps}"
        if rank() == 0:
            shutil.rmtree(target, ignore_errors=True)
            for part in (*PARTS, WRITTEN):
                (target / part).mkdir(parents=True)
        barrier()
        meta = {"format": FORMAT, "step": engine.steps, "config_hash": self.config_hash}
        texts = {"loader.json": json.dumps(loader), "meta.json": json.dumps(meta)}
        self._writing = self._pool.submit(self._write, target, self._copied(engine), texts)
        return target

    def wait(self) -> None:
        """Until what this rank writes, and on the first rank all, is on disk."""
        if self._writing is not None:
            self._writing.result()
            self._writing = None

    def _copied(self, engine: Engine) -> list[Pieces]:
        """This rank's pieces of all parts, as they are now; nothing is being written."""
        parts = [*engine.tensors(), {f"rank_{rank()}": torch.get_rng_state()}]
        if not self._copies or self._copies[0].keys() != parts[0].keys():
            # a first step makes the optimizer's state; places and copies then serve for good
            rng = {n: Place.all_of(t, mine=True) for n, t in parts[2].items()}
            self._places = [*engine.places(), rng]
            self._copies = [
                {n: torch.empty_like(t) for n, t in tensors.items() if at[n].mine}
                for tensors, at in zip(parts, self._places, strict=True)
            ]
        with torch.no_grad():
            for copies, tensors in zip(self._copies, parts, strict=True):
                if copies:
                    torch._foreach_copy_(list(copies.values()), [tensors[n] for n in copies])
        return list(zip(self._copies, self._places, strict=True))

    def _write(self, target: Path, pieces: list[Pieces], texts: dict[str, str]) -> None:
        name = f"rank_{rank()}.safetensors"
        for part, (tensors, places) in zip(PARTS, pieces, strict=True):
            write_pieces(target / part / name, tensors, places)
            _sync(target / part / name)
        _write(target / WRITTEN / f"rank_{rank()}", "")
        if rank() > 0:
            return
        for file, text in texts.items():
            _write(target / file, text)
        while len(list((target / WRITTEN).iterdir())) < world_size():
            time.sleep(LOOK_EVERY_S)  # a rank that dies ends this one too
        for path in (*target.iterdir(), target):
            _sync(path)
        _write(target / COMMITTED, "")
        _sync(target)
        for old in _committed(self.folder)[:-KEPT]:
            shutil.rmtree(old)


def save(folder: Path, engine: Engine, loader: dict[str, Any], *, config_hash: str) -> Path:
    """Write step_N below `folder` and wait for it; the last two are kept."""
    saver = Saver(folder, config_hash=config_hash)
    target = saver.save(engine, loader)
    saver.wait()
    return target


def resume(folder: Path, engine: Engine, *, config_hash: str) -> dict[str, Any] | None:
    """Restore the newest committed checkpoint and return its loader state; None without one.

    Restores weights, both optimizers, averages, step and RNG, however many ranks wrote them: with
    another number of ranks the RNG begins anew. Uncommitted folders are removed, and so are
    checkpoints of another config: they belong to a run that was asked for differently.
    """
    if rank() == 0:
        _remove_unusable(folder, config_hash)
    barrier()
    found = _committed(folder)
    if not found:
        return None
    newest = found[-1]
    readers = [PieceReader(newest / part) for part in (DENSE_PART, SPARSE_PART)]
    engine.expect(readers[0].names())
    held = zip(readers, engine.places(), engine.tensors(), strict=True)
    dense, sparse = (_read(*of_part) for of_part in held)
    engine.load_tensors(dense, sparse)
    _restore_rng(newest, engine.steps)
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
    kept = _matching(tables, engine.tables.shapes, "table")
    engine.set_tables(kept, {n: moments[n] for n in kept if n in moments})
    engine.set_dense(_matching(load_file(snapshot / DENSE), engine.dense_part.shapes, "weight"))
    engine.restart_averages()


def save_moments(folder: Path, engine: Engine) -> None:
    """Write what `warm_start` needs beside a snapshot: the tables' optimizer state."""
    moments = engine.moments()
    if rank() == 0:
        write_tensors(folder / MOMENTS, moments)


def _matching(
    found: dict[str, Tensor], own: Mapping[str, tuple[int, ...]], what: str
) -> dict[str, Tensor]:
    """Those of `found` that exist here in the same shape; a log line for each other one."""
    for name in sorted(own.keys() - found.keys()):
        log.info("%s %s is new and starts fresh", what, name)
    for name in sorted(found.keys() - own.keys()):
        log.info("%s %s is gone and was dropped", what, name)
    same = {n: t for n, t in found.items() if n in own and tuple(t.shape) == own[n]}
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


def _read(
    reader: PieceReader, places: Mapping[str, Place], own: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """What the files have of the tensors that this rank holds."""
    return {n: reader.read(n, places[n]) for n in sorted(own.keys() & reader.names())}


def _restore_rng(checkpoint: Path, step: int) -> None:
    """This rank's generator as it was; one of its own where other ranks wrote the checkpoint."""
    reader = PieceReader(checkpoint / RNG_PART)
    if len(reader.names()) == world_size():
        state = torch.get_rng_state()
        place = Place.all_of(state, mine=True)
        torch.set_rng_state(reader.read(f"rank_{rank()}", place))
        return
    log.info("%d ranks go on from a checkpoint of %d", world_size(), len(reader.names()))
    torch.manual_seed(step * world_size() + rank())


def _remove_unusable(folder: Path, config_hash: str) -> None:
    for path in sorted(folder.glob("step_*")) if folder.is_dir() else []:
        if not (path / COMMITTED).is_file() or _meta(path) != (FORMAT, config_hash):
            log.info("removing %s: not committed, or of another config", path)
            shutil.rmtree(path)


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
