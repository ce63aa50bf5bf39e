"""Quarantine: rejected rows with their reasons, one folder per table, day and unit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from pipeline.run.manifest import Manifest, Outcome, produce
from pipeline.run.paths import Run

REJECTED = "rejected.parquet"


def quarantine_folder(run: Run, table: str, day: str, unit: str) -> Path:
    """lake/<dataset>/quarantine/<table>/day=D/<unit>."""
    return run.lake("quarantine", table, f"day={day}", unit)


def publish_rejected(
    folder: Path,
    *,
    unit: str,
    inputs: Mapping[str, str],
    settings: object,
    reasons: Mapping[str, int],
    place: Callable[[Path], None],
) -> Manifest | None:
    """Publish rejected rows, which `place(path)` puts at a path.

    A folder appears only when there are (or were) any.
    """
    rows = sum(reasons.values())
    if not rows and not folder.exists():
        return None

    def build(temporary: Path) -> Outcome:
        place(temporary / REJECTED)
        return Outcome(rows=rows, figures={"reasons": dict(reasons)})

    return produce(
        folder, stage="quarantine", unit=unit, inputs=inputs, settings=settings, build=build
    )
