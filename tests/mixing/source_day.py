"""A day of a source as ingest reads it, in one piece."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import polars as pl

from pipeline.mixing.parts import DayParts, StartOverError
from pipeline.run.paths import Run


@dataclass(frozen=True, kw_only=True)
class Day:
    """The frames of a day's parts, and what the reader says of its files."""

    parts: list[pl.DataFrame]
    files: list[Path]
    broken: list[tuple[Path, str]]
    changes: tuple[str, ...]

    @property
    def frame(self) -> pl.DataFrame:
        return pl.concat(self.parts, how="diagonal_relaxed") if self.parts else pl.DataFrame()


def read_day(run: Run, table: str, day: str) -> Day:
    found = DayParts(run, table, day)
    while True:
        try:
            parts = list(found.parts())
        except StartOverError:
            continue
        return Day(parts=parts, files=found.files, broken=found.broken, changes=found.changes)
