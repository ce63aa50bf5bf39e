"""A day of a source table in parts of bounded size, file after file, in a fixed order.

A file that breaks, however late, is left out whole: the reader notes it and asks to start over.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import polars as pl

from pipeline.mixing.sources.files import (
    BROKEN,
    canonical_columns,
    file_columns,
    files_of,
    mapping_of,
    read_file,
    scan_file,
)
from pipeline.run.errors import ConfigError
from pipeline.run.paths import Run

log = logging.getLogger(__name__)
PART_ROWS = 262_144
# polars panics on some damaged files; to the day that is one more file that cannot be read
UNREADABLE = (*BROKEN, pl.exceptions.PanicException)


class StartOverError(Exception):
    """A file turned out to be unreadable, or to need another reader, after rows of it were used."""


class DayParts:
    """The files of one day of a table; `ConfigError` when the source does not map the table.

    `broken` has (path, reason) of files that cannot be read, `changes` one sentence per file whose
    columns differ from the first file's, `columns` all columns that the day's files offer.
    """

    def __init__(self, run: Run, table: str, day: str) -> None:
        mapping = mapping_of(run, table)
        if mapping is None:
            raise ConfigError(
                f"source.tables must map {table}, got "
                f"{[t.table for t in run.config.source.tables]}; add a mapping"
            )
        self.mapping, self.day = mapping, day
        self.wanted = canonical_columns(run, table)
        self.broken: list[tuple[Path, str]] = []
        self._whole: dict[Path, pl.DataFrame] = {}  # files that must be read value by value
        self._own: dict[Path, dict[str, str]] = {}
        self._scans: dict[Path, pl.LazyFrame] = {}
        self._offers: dict[Path, list[str]] = {}
        for path in files_of(run, mapping, day):
            self._open(path)

    @property
    def files(self) -> list[Path]:
        """The files that can be read, in order."""
        return list(self._scans)

    @property
    def columns(self) -> set[str]:
        """Canonical columns that at least one file has."""
        return {name for path in self._scans for name in self._offers[path]}

    @property
    def own_columns(self) -> dict[str, str]:
        """The first file's own columns and types; empty without files."""
        return next((self._own[p] for p in self._scans), {})

    @property
    def changes(self) -> tuple[str, ...]:
        """What differs between the day's files, one sentence per file."""
        files = self.files
        found = [(p, difference(self._own[files[0]], self._own[p])) for p in files[1:]]
        return tuple(f"{p.name} against {files[0].name}: {text}" for p, text in found if text)

    def parts(self, columns: list[str] | None = None) -> Iterator[pl.DataFrame]:
        """Frames of at most `PART_ROWS` rows of what each file has of `columns`, in source order.

        Raises `StartOverError` when a file breaks on the way: what came of it must be forgotten.
        """
        for path in self.files:
            offered = self._offers[path]
            chosen = offered if columns is None else [c for c in columns if c in offered]
            if chosen:
                yield from self._parts_of(path, chosen)

    def _open(self, path: Path) -> None:
        try:
            self._own[path] = file_columns(self.mapping, path)
            scan = scan_file(self.mapping, path, self.wanted, self.day)
            self._offers[path] = scan.collect_schema().names()
            self._scans[path] = scan
        except UNREADABLE as error:
            self._set_aside(path, error)

    def _parts_of(self, path: Path, columns: list[str]) -> Iterator[pl.DataFrame]:
        if path in self._whole:
            yield from self._whole[path].select(columns).iter_slices(PART_ROWS)
            return
        batches: Iterator[pl.DataFrame] | None = None
        while True:
            try:
                batches = batches or self._batches(path, columns)
                batch = next(batches, None)
            except UNREADABLE as error:
                raise self._demoted(path, error) from error
            if batch is None:
                return
            yield batch  # outside of the try: what the reader's user raises is no broken file

    def _batches(self, path: Path, columns: list[str]) -> Iterator[pl.DataFrame]:
        chosen = self._scans[path].select(columns)
        return iter(
            chosen.collect_batches(chunk_size=PART_ROWS, maintain_order=True, engine="streaming")
        )

    def _demoted(self, path: Path, error: BaseException) -> StartOverError:
        """Try the patient reader, which puts null for single values; else leave the file out."""
        try:
            self._whole[path] = read_file(self.mapping, path, self.wanted, self.day)
        except UNREADABLE as worse:
            error = worse
            del self._scans[path]
            self._set_aside(path, error)
        return StartOverError(path.name)

    def _set_aside(self, path: Path, error: BaseException) -> None:
        first = (str(error).splitlines() or [""])[0][:300]
        reason = f"{type(error).__name__}: {first}".replace(str(path.parent), "")
        log.warning("%s: %s", path, reason)
        self.broken.append((path, reason))


def columns_of_day(run: Run, table: str, day: str) -> dict[str, str]:
    """Own columns and types of a day's first readable file; empty when there is none."""
    return DayParts(run, table, day).own_columns


def difference(before: dict[str, str], now: dict[str, str]) -> str:
    """What changed between two sets of columns, as a clause; "" when nothing did."""
    lost = [n for n in before if n not in now]
    new = [n for n in now if n not in before]
    other = [f"{n} ({before[n]} to {now[n]})" for n in now if n in before and before[n] != now[n]]
    if not (lost or new or other):
        return ""
    return f"missing {lost}, new {new}, other type {other}"
