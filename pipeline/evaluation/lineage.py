"""Earlier runs of a run's lineage: what the report's history and the students' champion need."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pipeline.run.errors import ConfigError
from pipeline.run.paths import Run, open_run


def earlier_runs(run: Run, *, limit: int = 30) -> list[Run]:
    """At most `limit` runs of the lineage before this one, one per day (the one decided last)."""
    found: list[Run] = []
    days = (run.home / "runs").glob("????-??-??")
    for day in sorted((d for d in days if d.name < run.config.day), reverse=True):
        if len(found) == limit:
            break
        newest = _newest(day, run.config.lineage)
        if newest:
            found.append(newest)
    return found


def read_json(run: Run, *parts: str) -> Any:
    """A published JSON file of the run; None when it is not there."""
    path = run.inside(*parts)
    return json.loads(path.read_text()) if path.is_file() else None


def _newest(day: Path, lineage: str) -> Run | None:
    decided = sorted(
        day.glob("*/promote/decision.json"),
        key=lambda p: (p.stat().st_mtime_ns, p.parent.parent.name),
    )
    for path in reversed(decided):
        try:
            run = open_run(path.parents[1])
        except ConfigError:  # written by another version of the code: not of this lineage
            continue
        if run.config.lineage == lineage:
            return run
    return None
