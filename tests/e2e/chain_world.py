"""A planted run up to the mix, with a foundation model that nobody trained as its epoch."""

from __future__ import annotations

from pathlib import Path

import torch

from model.foundation import FoundationModel
from model.snapshot import save_snapshot
from pipeline.loopfm.represent import represent
from pipeline.mixing.ingest import ingest
from pipeline.mixing.labels import labels
from pipeline.mixing.land import land
from pipeline.mixing.mix import mix
from pipeline.mixing.timeline import timelines
from pipeline.run.codec import to_dict
from pipeline.run.config import RunConfig, with_overrides
from pipeline.run.manifest import Outcome, produce, write_json
from pipeline.run.paths import Run, run_folder
from pipeline.run.presets import preset
from pipeline.run.window import window_of
from pipeline.solaris.as_served import as_served
from pipeline.solaris.candidates import predict
from pipeline.solaris.precompute import precompute
from pipeline.solaris.publish import publish
from pipeline.solaris.replay import replay
from pipeline.solaris.vectors import shard_names
from pipeline.solaris.verify import verify

DAY = "2026-11-29"


def chain_config(**overrides: object) -> RunConfig:
    """Smoke, and smaller."""
    quick = {
        "source.planted.rows_per_day": 1_500,
        "source.planted.users": 150,
        "source.planted.ads": 40,
        "window.bootstrap_days": 3,
        "solaris.num_shards": 2,
        "transfer.batch_size": 128,
        "train.threads": 1,
    }
    return with_overrides(preset(DAY, "smoke"), {**quick, **overrides})


def make_run(home: Path, config: RunConfig) -> Run:
    """A run folder with its config."""
    folder = run_folder(config, home)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "run.json", to_dict(config))
    return Run(folder=folder, config=config)


def run_plane(run: Run) -> None:
    """Every stage up to the mix."""
    land(run, "")
    for unit in (*run.config.surfaces, "rest"):
        ingest(run, unit)
    labels(run, "")
    for group in range(run.config.window.num_groups):
        timelines(run, str(group))
    mix(run, "")


def open_epoch(run: Run, *, name: str = "first", fm_cut_us: int | None = None) -> None:
    """Publish pretrain's epoch: a model as it was initialised."""
    config = run.config
    cut_us = window_of(config).students_begin if fm_cut_us is None else fm_cut_us
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = FoundationModel(
            config.features, config.objectives, len(config.surfaces), config.model
        )

    def build(folder: Path) -> Outcome:
        save_snapshot(
            folder / "epoch",
            model,
            features=config.features,
            objectives=config.objectives,
            surfaces=config.surfaces,
            config=config.model,
            extra={},
        )
        where = str((run.output("pretrain") / "epoch").relative_to(run.home))
        epoch = {"id": name, "fm_cut_us": cut_us, "folder": where}
        write_json(folder / "summary.json", {"epoch": epoch})
        return Outcome(rows=0)

    produce(
        run.output("pretrain"), stage="pretrain", inputs={}, settings=(name, cut_us), build=build
    )


def run_solaris(run: Run) -> dict[str, str]:
    """Every Solaris stage; returns fingerprints by stage and unit."""
    done = {"represent": represent(run, "").fingerprint, "predict": predict(run, "").fingerprint}
    for shard in shard_names(run):
        done[f"precompute/{shard}"] = precompute(run, shard).fingerprint
    for stage in (verify, publish, replay, as_served):
        done[stage.__name__] = stage(run, "").fingerprint
    return done
