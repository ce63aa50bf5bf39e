"""The contestants of `transfer`: every arm's student on one world, and what its parts cost.

A contestant is a process that prepares a world (`_transfer_world`), trains every student once and
leaves its probabilities in the home folder; what lies there already is not trained again. KD gets
the gamma that serves it best on the very rows that are scored.

Suffixes: R rows, B rows of a batch, N stored vectors, d code width, K objectives.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import polars as pl
import torch

from benchmarks._transfer_world import planted, real
from model.batch import Batch
from model.foundation import FoundationModel
from model.snapshot import load_snapshot
from pipeline.evaluation.metrics import normalized_entropy
from pipeline.evaluation.truth import with_truth
from pipeline.loopfm.arms import arms_named
from pipeline.loopfm.compress import pack, unpack
from pipeline.loopfm.epoch import epoch_in_force
from pipeline.loopfm.nibbles import codebook, pack_nibbles
from pipeline.loopfm.scoring import score
from pipeline.loopfm.student_rows import SurfaceRows, surface_rows
from pipeline.loopfm.training import StudentRows, predict_rows, read_by
from pipeline.loopfm.transfer import features_of, trained
from pipeline.mixing.loader import Loader
from pipeline.run.codec import digest
from pipeline.run.config import with_overrides
from pipeline.run.manifest import replacing
from pipeline.run.paths import Run

GAMMAS = (10.0, 30.0, 100.0)
MAIN = ("none", "raw", "loopfm", "kd_loopfm", "kd_raw", "kd_raw_loopfm", "placebo", "bound")
FEW = ("none", "kd", "kd_loopfm")
FULL = "kd_raw_loopfm"
ENCODERS = ("mean", "sum", "din", "dmin")
CLICK = "click"
STUDENT: dict[str, Any] = {
    "transfer.encoder": "mean",
    "transfer.lr": 1e-2,
    "transfer.batch_size": 256,
    "transfer.embedding_init_sd": 0.2,
}
SPEED_ROWS, SPEED_BATCH, SPEED_TURNS = 16_384, 2_048, 7
Floats = npt.NDArray[np.float32]
Kinds = Literal["main", "features", "all"]


@dataclass(frozen=True, kw_only=True)
class Variant:
    """Students of one kind: what is changed in the run's config, and which arms they train."""

    name: str
    arms: tuple[str, ...]
    changes: dict[str, Any]
    features: str = "own"


def variants(gamma: float, kinds: Kinds) -> list[Variant]:
    """The page's arms; then other features, encoders, trunks and the adapter, few arms each."""
    kd = {"transfer.kd_gamma": gamma}
    found = [Variant(name="main", arms=MAIN, changes=kd)]
    if kinds != "main":
        found.append(Variant(name="user_id", arms=FEW, changes=kd, features="user_id"))
        found.append(Variant(name="no_gap", arms=FEW, changes=kd, features="all"))
    if kinds == "all":
        found += _other_students(kd)
    return found


def _other_students(kd: dict[str, Any]) -> list[Variant]:
    found = []
    for encoder in ENCODERS:
        if encoder != STUDENT["transfer.encoder"]:
            changes = kd | {"transfer.encoder": encoder}
            found.append(Variant(name=encoder, arms=("loopfm", "kd_loopfm"), changes=changes))
    for arch in ("din", "tiny"):
        changes = kd | {"transfer.student": arch}
        found.append(Variant(name=f"student_{arch}", arms=FEW, changes=changes))
    found.append(Variant(name="adapter", arms=FEW[1:], changes=kd | {"transfer.kd_adapter": True}))
    return found


def planted_world(home: str, seed: int, size: dict[str, Any], kinds: Kinds) -> dict[str, Any]:
    """The students of a planted world, the cost of formats, and speeds."""
    run = planted(Path(home), seed, **size)
    found = _students(run, seed, kinds)
    return found | {"formats": _formats(run, seed, found["gamma"]), "speed": _speed(run, seed)}


def real_world(
    home: str, seed: int, name: str, day: str, changes: dict[str, Any]
) -> dict[str, Any]:
    """The page's arms on a public set."""
    return _students(real(Path(home), name, day, seed, **changes), seed, "main")


def _students(run: Run, seed: int, kinds: Kinds) -> dict[str, Any]:
    torch.set_num_threads(1)
    rows = cache(lambda surface, features: rows_of_surface(run, surface, features))
    surfaces = run.config.surfaces
    tried = [
        Variant(name=f"gamma_{g:g}", arms=("kd",), changes={"transfer.kd_gamma": g}) for g in GAMMAS
    ]
    paths = {v.name: _scored(run, v, rows, seed) for v in tried}
    gamma = GAMMAS[int(np.argmin([_mean_ne(paths[v.name]) for v in tried]))]
    for variant in variants(gamma, kinds):
        paths[variant.name] = _scored(run, variant, rows, seed)
    return {"surfaces": surfaces, "gamma": gamma, "scores": paths}


def rows_of_surface(run: Run, surface: str, features: str) -> SurfaceRows:
    """A surface's rows with raw events, of students with other features where asked for."""
    changed = _with_features(run, features)
    return surface_rows(changed, surface, features=features_of(changed, raw=True), raw=True)


def _with_features(run: Run, which: str) -> Run:
    """The run with other features for students: with the user's id, or all that there are."""
    if which == "own":
        return run
    sparse, dense = run.config.features.sparse, run.config.features.dense
    shown = tuple(
        replace(f, central_only=f.central_only and which != "all" and f.name != "user_id")
        for f in sparse
    )
    if which == "all":
        dense = tuple(replace(f, central_only=False) for f in dense)
    features = replace(run.config.features, sparse=shown, dense=dense)
    return Run(folder=run.folder, config=replace(run.config, features=features))


def _scored(
    run: Run, variant: Variant, rows: Callable[[str, str], SurfaceRows], seed: int
) -> dict[str, str]:
    """Per surface the file with the variant's probabilities."""
    given = _with_features(run, variant.features)
    given = with_students(given, variant.changes)
    settings = digest([STUDENT | variant.changes, variant.arms, variant.features, seed])
    found = {}
    for surface in run.config.surfaces:
        path = run.folder / "scores" / f"{variant.name}-{settings}-{surface}.parquet"
        if not path.is_file():
            path.parent.mkdir(exist_ok=True)
            began = time.process_time()
            frame = _frame(given, rows(surface, variant.features), variant.arms, seed)
            with replacing(path) as file:
                frame.write_parquet(file)
            print(f"{path.stem}: {time.process_time() - began:.0f} s", flush=True)
        found[surface] = str(path)
    return found


def with_students(run: Run, changes: dict[str, Any]) -> Run:
    """The run with the benchmark's students, and changes to them."""
    return Run(folder=run.folder, config=with_overrides(run.config, STUDENT | changes))


def _frame(run: Run, data: SurfaceRows, names: tuple[str, ...], seed: int) -> pl.DataFrame:
    """Labels, truth and every arm's probability of the clicks that are scored."""
    train, test, scored = split(data)
    columns = {"y": data.y_RK[scored, 0], "fm": test.soft_RK[:, 0].numpy()}
    for arm in arms_named(names):
        student = trained(run, train, arm, seed)
        columns[arm.name] = predict_rows(student, read_by(arm, test, seed), arm)[:, 0].numpy()
    ids = with_truth(run, data.ids[scored])
    true = f"true_{CLICK}"
    judged = ids[true] if true in ids.columns else pl.Series(columns["y"]).cast(pl.Float64)
    return pl.DataFrame({"user_id": ids["user_id"], "judged": judged, **columns})


def split(data: SurfaceRows) -> tuple[StudentRows, StudentRows, npt.NDArray[np.int64]]:
    """Rows to train on, rows to score, and where the latter are."""
    train_R = np.flatnonzero(data.train_RK.any(axis=1))
    test_R = np.flatnonzero(data.test_RK[:, 0])
    return (
        data.rows.part(torch.from_numpy(train_R)),
        data.rows.part(torch.from_numpy(test_R)),
        test_R,
    )


def _mean_ne(paths: dict[str, str]) -> float:
    frames = [pl.read_parquet(path) for path in paths.values()]
    found = [normalized_entropy(f["judged"].to_numpy(), f["kd"].to_numpy()) for f in frames]
    return float(np.mean(found))


def _formats(run: Run, seed: int, gamma: float) -> dict[str, dict[str, float]]:
    """NE of one full student per surface with its vectors in each format, and bytes of a vector."""
    found: dict[str, dict[str, float]] = {}
    run = with_students(run, {"transfer.kd_gamma": gamma})
    (arm,) = arms_named((FULL,))
    for surface in run.config.surfaces:
        data = rows_of_surface(run, surface, "own")
        train, test, scored = split(data)
        student = trained(run, train, arm, seed)
        judged = with_truth(run, data.ids[scored])[f"true_{CLICK}"].to_numpy()
        for name, codes_Nd in in_formats(test.loop.stored_NS.numpy()).items():
            stored = test.loop.with_stored(torch.from_numpy(codes_Nd))
            p_R = predict_rows(student, replace(test, loop=stored), arm)[:, 0].numpy()
            found.setdefault(name, {})[surface] = float(normalized_entropy(judged, p_R))
    width = run.config.model.representation_dim
    return found | {"bytes": {"float32": 4 * width, "int8": width, "four_bits": -(-width // 2)}}


def in_formats(z_Nd: Floats) -> dict[str, Floats]:
    """The same codes as each format gives them back; `sign` keeps one bit, which must cost."""
    fours = {k: pack_nibbles(z_Nd, codebook(z_Nd, k)).unpack() for k in ("int4", "kmeans4")}  # type: ignore[arg-type]
    one_bit = (np.sign(z_Nd) * np.abs(z_Nd).mean(axis=0)).astype(np.float32)
    return {"float32": z_Nd, "int8": unpack(pack(z_Nd, "int8")), **fours, "sign": one_bit}


def _speed(run: Run, seed: int) -> dict[str, float]:
    """Seconds of processor: vectors beside plain scores, a student with L = 50 beside one without.

    Taken in turns, so that a busy minute hits both alike; medians of the turns' ratios.
    """
    model = load_snapshot(epoch_in_force(run).folder)
    loader = Loader(run, "log", batch_size=SPEED_BATCH)
    num_batches = min(loader.num_batches, SPEED_ROWS // SPEED_BATCH)
    batches = [loader.batch(i) for i in range(num_batches)]
    plain = load_snapshot(epoch_in_force(run).folder)
    plain.dense.register_module("compressor", _NoCode())
    width = run.config.model.representation_dim
    represent_ratio = _ratio(
        lambda: _forward(plain, batches, 1), lambda: _forward(model, batches, width)
    )
    return {"represent_ratio": represent_ratio, "student_cost_ratio": _student_cost(run, seed)}


class _NoCode(torch.nn.Module):
    """In the place of a compressor: a code of one zero, for nothing."""

    def forward(self, x_BX: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Zeros [B, 1] and no loss."""
        return x_BX.new_zeros((len(x_BX), 1)), x_BX.new_zeros(())


def _forward(model: FoundationModel, batches: list[Batch], width: int) -> None:
    score(
        model,
        batches,
        num_rows=sum(batch.num_rows for batch in batches),
        width=width,
        num_objectives=batches[0].labels_BK.shape[1],
        quantization="int8",
        title="speed",
        workers=1,
    )


def _student_cost(run: Run, seed: int) -> float:
    run = with_students(run, {})
    data = rows_of_surface(run, run.config.surfaces[0], "own")
    train, _, _ = split(data)
    few = train.part(slice(0, min(len(train), SPEED_ROWS)))
    students = {}
    for arm in arms_named(("kd", "kd_loopfm")):
        students[arm.name] = (arm, trained(run, few.part(slice(0, 1_024)), arm, seed))
    with_, without = students["kd_loopfm"], students["kd"]
    return _ratio(
        lambda: predict_rows(with_[1], few, with_[0]),
        lambda: predict_rows(without[1], few, without[0]),
    )


def _ratio(above: Callable[[], Any], below: Callable[[], Any]) -> float:
    """Median over turns of processor time of one by that of the other."""
    return statistics.median(a / b for a, b in _turns(above, below))


def _turns(above: Callable[[], Any], below: Callable[[], Any]) -> Iterator[tuple[float, float]]:
    for turn in range(SPEED_TURNS + 1):
        seconds = []
        for work in (above, below):
            began = time.process_time()
            work()
            seconds.append(time.process_time() - began)
        if turn:  # the first one warms caches up
            yield seconds[0], seconds[1]
