"""A planted world of a few hundred rows a day, run up to the mix."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pipeline.mixing.ingest import ingest
from pipeline.mixing.labels import labels
from pipeline.mixing.land import land
from pipeline.mixing.mix import mix
from pipeline.mixing.timeline import timelines
from pipeline.run.codec import to_dict
from pipeline.run.config import Parent, with_overrides
from pipeline.run.manifest import write_json
from pipeline.run.paths import Run, run_folder
from pipeline.run.presets import preset

FIRST, NEXT = "2026-11-29", "2026-11-30"
TINY = {
    "source.planted.rows_per_day": 800,
    "source.planted.users": 100,
    "source.planted.ads": 40,
    "train.threads": 1,
    "train.batch_size": 128,
}


def tiny_run(
    home: Path, day: str, parent: Parent | None = None, overrides: dict[str, object] | None = None
) -> Run:
    """A run folder with its config."""
    changes = TINY | (overrides or {})
    config = replace(with_overrides(preset(day, "smoke"), changes), parent=parent)
    folder = run_folder(config, home)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "run.json", to_dict(config))
    return Run(folder=folder, config=config)


def prepare_run(run: Run) -> None:
    """Every stage up to the mix."""
    land(run, "")
    for unit in (*run.config.surfaces, "rest"):
        ingest(run, unit)
    labels(run, "")
    timelines(run, "0")
    mix(run, "")
