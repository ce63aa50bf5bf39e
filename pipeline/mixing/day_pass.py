"""A day of a table, read once and published for every unit that it concerns.

Whichever unit comes to a day of impressions first publishes it for all surfaces; the others find
it up to date. An interrupted pass leaves finished partitions alone and makes the rest again.
"""

from __future__ import annotations

import dataclasses
import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, cached_property
from pathlib import Path

import polars as pl

from data_contracts.schema import CANONICAL_CONVERSIONS, schema_hash
from pipeline.mixing.canonical import REST, bucket_file, partition_folder
from pipeline.mixing.cleaning import rules_of
from pipeline.mixing.frames import write_frame
from pipeline.mixing.ledger import Entry
from pipeline.mixing.parts import DayParts
from pipeline.mixing.quarantine import REJECTED, publish_rejected, quarantine_folder
from pipeline.mixing.sources.files import files_of, mapping_of
from pipeline.mixing.splitting import DaySplit, split_day
from pipeline.run.config import RunConfig
from pipeline.run.lock import locked
from pipeline.run.manifest import Manifest, Outcome, fingerprint_of, produce, sha256_file
from pipeline.run.paths import Run

log = logging.getLogger(__name__)
LONGEST_PASS_S = 4 * 3600.0  # units that wait for a day which another one is reading


def publish_day(run: Run, table: str, day: str) -> dict[str, Manifest]:
    """Publish a day of a table for all its units, as far as it is not up to date.

    Units are the surfaces and "rest" for impressions, "rest" alone for other tables.
    """
    units = (*run.config.surfaces, REST) if table == "impressions" else (REST,)
    with _one_pass(run, table, day) as day_pass:
        return {unit: day_pass.publish(unit) for unit in units}


def settings_of(config: RunConfig) -> dict[str, object]:
    """What decides the canonical rows, apart from the source's files."""
    sparse = [f.name for f in config.features.sparse]
    dense = [f.name for f in config.features.dense]
    return {
        "surfaces": config.surfaces,
        "features": [sparse, dense],
        "buckets": config.window.num_buckets,
        "mapping": config.source.tables,
        "conversions": schema_hash(CANONICAL_CONVERSIONS),
    }


@contextmanager
def _one_pass(run: Run, table: str, day: str) -> Iterator[_DayPass]:
    """Alone with a day of a table; what a pass put aside is removed in the end."""
    staging = run.lake("canonical", table, f".day={day}.pass")
    with locked(staging.with_name(f"{staging.name}.lock"), wait_s=LONGEST_PASS_S):
        try:
            yield _DayPass(run, table, day, staging)
        finally:
            shutil.rmtree(staging, ignore_errors=True)


class _DayPass:
    """A day of a table that is split once, when the first unit turns out to need it."""

    def __init__(self, run: Run, table: str, day: str, staging: Path) -> None:
        self.run, self.table, self.day, self.staging = run, table, day, staging
        self.inputs = {"source": _source_fingerprint(run, table, day)}
        self.settings = settings_of(run.config)

    @cached_property
    def parts(self) -> DayParts:
        """The source's files."""
        return DayParts(self.run, self.table, self.day)

    @cached_property
    def split(self) -> DaySplit:
        """The one pass over them."""
        return split_day(self.run.config, self.parts, self.table, self.day, self.staging)

    def publish(self, unit: str) -> Manifest:
        """Publish a unit's partition and quarantine, unless they are up to date."""
        run, table, day = self.run, self.table, self.day
        homeless = table == "impressions" and unit == REST  # rows of no surface: quarantine alone
        target = quarantine_folder if homeless else partition_folder
        return produce(
            target(run, table, day, unit),
            stage="ingest",
            unit=f"{table} {day} {unit}",
            inputs=self.inputs,
            settings=self.settings,
            build=lambda folder: self._build(unit, homeless, folder),
        )

    def _build(self, unit: str, homeless: bool, folder: Path) -> Outcome:
        counted, entry = self.split.units[unit], self._entry(unit)
        figures = {"ledger": dataclasses.asdict(entry), "table_rows": self.split.table_rows}
        if homeless:
            self._place_rejected(unit, folder / REJECTED)
            return Outcome(rows=counted.rejected, figures=figures)
        publish_rejected(
            quarantine_folder(self.run, self.table, self.day, unit),
            unit=unit,
            inputs=self.inputs,
            settings=self.settings,
            reasons=dict(entry.reasons),
            place=lambda path: self._place_rejected(unit, path),
        )
        for bucket in range(self.run.config.window.num_buckets):
            bucket_file(self.staging / unit, bucket).rename(bucket_file(folder, bucket))
        return Outcome(
            rows=counted.rows_out,
            figures=figures | {"bucket_rows": counted.bucket_rows},
            schema_hash=schema_hash(rules_of(self.run.config, self.table).schema),
        )

    def _place_rejected(self, unit: str, path: Path) -> None:
        if self.split.units[unit].rejected:
            (self.staging / unit / REJECTED).rename(path)
        else:
            write_frame(path, pl.DataFrame(schema={"reason": pl.String, "row": pl.String}))

    def _entry(self, unit: str) -> Entry:
        counted, broken = self.split.units[unit], sorted(self.parts.broken)
        if counted.rejected:
            log.warning("%s of %s: refused rows %s", self.table, self.day, dict(counted.reasons))
        return Entry(
            table=self.table,
            day=self.day,
            rows_in=counted.rows_in,
            rows_out=counted.rows_out,
            quarantined=counted.rejected - counted.duplicates,
            duplicates=counted.duplicates,
            reasons=tuple(sorted(counted.reasons.items())),
            # names without folders, so that the same files give the same ledger in every home
            broken_files=tuple(f"{path.name}: {why}" for path, why in broken),
            schema_changes=self.parts.changes,
            defaulted=self.split.defaulted,
        ).checked()


def _source_fingerprint(run: Run, table: str, day: str) -> str:
    mapping = mapping_of(run, table)
    files = files_of(run, mapping, day) if mapping else []
    return fingerprint_of([(p.name, _sha256(p, p.stat().st_mtime_ns)) for p in files])


@cache  # a file of many days is hashed once per process, not once per day
def _sha256(path: Path, _modified_ns: int) -> str:
    return sha256_file(path)
