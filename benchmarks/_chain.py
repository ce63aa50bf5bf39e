"""The stages before training, one after the other in this process."""

from __future__ import annotations

from pipeline.mixing.ingest import ingest
from pipeline.mixing.labels import labels
from pipeline.mixing.land import land
from pipeline.mixing.timeline import timelines
from pipeline.run.paths import Run
from pipeline.run.runs import units_of


def up_to_timelines(run: Run) -> None:
    """Every stage before the mix."""
    land(run)
    for unit in units_of(run, "ingest"):
        ingest(run, unit)
    labels(run)
    for unit in units_of(run, "timelines"):
        timelines(run, unit)
