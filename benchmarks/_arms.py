"""The arms of `mixing_quality`: one lake, one holdout, one trainer, and a mix of its own for each.

A contestant is a process that runs one source with one seed through the real stages: `land` to
`timelines` once, then `mix`, `pretrain` and the scoring of `evaluate` for every arm. The model of a
surface alone trains on that surface's part of the natural-share mix, so that the surfaces' models
cost together what that mix costs, and what the mix under test costs.

Suffixes: N rows.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from benchmarks._chain import up_to_timelines
from pipeline.evaluation.evaluate import predict
from pipeline.mixing.canonical import bucket_file
from pipeline.mixing.frames import read_frames, write_selection
from pipeline.mixing.mix import SELECTIONS, mix
from pipeline.mixing.sources.fetch import SETS, fetch
from pipeline.pretraining.pretrain import pretrain
from pipeline.run.codec import to_dict
from pipeline.run.config import RunConfig, with_overrides
from pipeline.run.manifest import Manifest, Outcome, need_manifest, produce, replacing, write_json
from pipeline.run.paths import Run, open_run
from pipeline.run.presets import preset
from pipeline.run.resolve import resolve

MIX, NATURAL, UNIFORM = "mix", "natural", "uniform"
ALPHAS = {MIX: 0.7, NATURAL: 1.0, UNIFORM: 1e-6}
# holdouts of 20 days that follow each other; the log ends on the first of these days
MOVIELENS_DAYS = ("1998-04-22", "1998-04-02", "1998-03-13")
KEPT = ("land", "ingest", "labels", "timelines")


@dataclass(frozen=True, kw_only=True)
class Size:
    """How large a planted world is; `calibration_hours` of it fit the intercepts."""

    rows_per_day: int
    users: int
    ads: int
    bootstrap_days: int
    calibration_hours: int
    batch_size: int


FULL = Size(
    rows_per_day=150_000,
    users=7_500,
    ads=150,
    bootstrap_days=6,
    calibration_hours=72,
    batch_size=512,
)
QUICK = Size(
    rows_per_day=12_000, users=800, ads=80, bootstrap_days=5, calibration_hours=48, batch_size=256
)


def planted(home: str, seed: int, quick: bool, processors: int) -> dict[str, Any]:
    """All arms on a planted world of unequal surfaces; where their predictions are."""
    size = QUICK if quick else FULL
    changes: dict[str, Any] = {
        "source.planted.seed": seed,
        "source.planted.rows_per_day": size.rows_per_day,
        "source.planted.users": size.users,
        "source.planted.ads": size.ads,
        "source.planted.shares": (0.65, 0.25, 0.10),
        "window.bootstrap_days": size.bootstrap_days,
        "window.holdout_hours": 24,
        "window.calibration_hours": size.calibration_hours,
        # the hours that calibrate lie within the students' span; before it, conversions mature
        "window.student_days": size.bootstrap_days - 2,
        "mix.budget": 1.0,
        "train.batch_size": size.batch_size,
    }
    return _arms(Path(home), preset("2026-11-29", "small"), seed, processors, changes)


def movielens(home: str, seed: int, quick: bool, processors: int) -> dict[str, Any]:
    """All arms on MovieLens-100k up to a seed's day, fetched when it is not in the home folder."""
    fetch(SETS["movielens"], Path(home))
    changes: dict[str, Any] = {
        "mix.seed": seed,
        "mix.budget": 1.0,
        "train.batch_size": 256,
    }
    if quick:  # the last third of the log
        changes |= {"window.bootstrap_days": 100, "window.student_days": 60}
    config = preset(MOVIELENS_DAYS[seed % len(MOVIELENS_DAYS)], "small", "movielens")
    return _arms(Path(home), config, seed, processors, changes)


def _arms(
    home: Path, config: RunConfig, seed: int, processors: int, changes: dict[str, Any]
) -> dict[str, Any]:
    same = {"train.seed": seed, "train.threads": processors, "model.layers": 1}
    config = replace(with_overrides(config, changes | same), warm_start=False)
    found: dict[str, Any] = {"surfaces": config.surfaces, "arms": {}}
    found["objectives"] = [o.name for o in config.objectives]
    runs = {}
    for arm, alpha in ALPHAS.items():
        runs[arm] = _central(home, with_overrides(config, {"mix.alpha": alpha}))
        found["arms"][arm] = _trained(runs[arm])
    for place, surface in enumerate(config.surfaces):
        found["arms"][surface] = _trained(_alone(runs[NATURAL], place))
    figures = need_manifest(runs[MIX].output("mix")).read_figures()
    found["flops"] = {arm: _flops(run) for arm, run in runs.items()}
    found["largest"] = figures["reference_surface"]
    return found


def _central(home: Path, config: RunConfig) -> Run:
    run = open_run(resolve(config, home))
    up_to_timelines(run)
    mix(run)
    return run


def _alone(natural: Run, place: int) -> Run:
    """A run whose mix is one surface's part of the natural-share mix, on the same outputs."""
    # the mix's seed plays no part in what is copied here: it gives the run a folder of its own
    config = replace(natural.config, mix=replace(natural.config.mix, seed=10_000 + place))
    run = Run(folder=natural.folder.with_name(config.run_name), config=config)
    for stage in KEPT:
        shutil.copytree(natural.output(stage), run.output(stage), dirs_exist_ok=True)
    write_json(run.folder / "run.json", to_dict(config))
    _part_of(natural, run, place)
    return run


def _part_of(natural: Run, run: Run, place: int) -> Manifest:
    def build(folder: Path) -> Outcome:
        rows = 0
        for selection in SELECTIONS:
            for bucket in range(run.config.window.num_buckets):
                frame = read_frames([bucket_file(natural.output("mix") / selection, bucket)])
                mine = frame.filter(pl.col("surface") == place)
                write_selection(bucket_file(folder / selection, bucket), mine)
                rows += len(mine) * (selection == "train")
        return Outcome(rows=rows)

    inputs = {"mix": need_manifest(natural.output("mix")).fingerprint}
    return produce(run.output("mix"), stage="mix", inputs=inputs, settings=[place], build=build)


def _trained(run: Run) -> str:
    """Train an arm and score the holdout; the path of its predictions."""
    trained = pretrain(run, "")
    path = run.folder / f"scores-{trained.fingerprint[:12]}.parquet"
    if not path.is_file():
        with replacing(path) as file:
            predict(run).write_parquet(file)
    return str(path)


def _flops(run: Run) -> float:
    return float(need_manifest(run.output("mix")).read_figures()["flops_mix"])
