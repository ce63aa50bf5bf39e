"""Quarantine: rejected rows with their reasons, one folder per table, day and unit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pipeline.mixing.cleaning import Cleaned
from pipeline.mixing.frames import write_frame
from pipeline.run.manifest import Manifest, Outcome, produce
from pipeline.run.paths import Run


def quarantine_folder(run: Run, table: str, day: str, unit: str) -> Path:
    """lake/<dataset>/quarantine/<table>/day=D/<unit>."""
    return run.lake("quarantine", table, f"day={day}", unit)


def publish_rejected(
    folder: Path,
    *,
    unit: str,
    inputs: Mapping[str, str],
    settings: object,
    cleaned: Cleaned,
) -> Manifest | None:
    """Publish rejected rows; a folder appears only when there are (or were) any."""
    rejected = cleaned.rejected
    if not len(rejected) and not folder.exists():
        return None

    def build(temporary: Path) -> Outcome:
        write_frame(temporary / "rejected.parquet", rejected)
        return Outcome(rows=len(rejected), figures={"reasons": cleaned.reasons})

    return produce(
        folder, stage="quarantine", unit=unit, inputs=inputs, settings=settings, build=build
    )
