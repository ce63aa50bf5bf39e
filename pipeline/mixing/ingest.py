"""Ingest: foreign rows of a day become canonical partitions, quarantined rows and a ledger.

A unit is a surface (its impressions) or "rest": conversions, engagements, candidates, the
impressions that belong to no configured surface, and the planted truth where there is one.
"""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path

from pipeline.mixing.canonical import REST
from pipeline.mixing.day_pass import publish_day, settings_of
from pipeline.mixing.ledger import Entry, listed, totals
from pipeline.mixing.parts import columns_of_day, difference
from pipeline.mixing.truth import ingest_truth
from pipeline.run.codec import digest, from_dict
from pipeline.run.config import RunConfig
from pipeline.run.errors import ConfigError, DataError
from pipeline.run.manifest import Manifest, Outcome, produce, write_json
from pipeline.run.paths import Run
from pipeline.run.window import window_of

log = logging.getLogger(__name__)


def ingest(run: Run, unit: str) -> Manifest:
    """Publish every window day of a unit and the ledger; finished partitions are left alone.

    `DataError` when the run's own day has no impressions, `ConfigError` for an unknown unit.
    """
    config = run.config
    units = (*config.surfaces, REST)
    if unit not in units:
        raise ConfigError(
            f"ingest unit must be a surface or {REST!r}, got {unit!r}; choose among {[*units]}"
        )
    days = window_of(config).days
    # units that run side by side begin at different days, so that they share the work
    first = units.index(unit) * len(days) // len(units)
    order = (*days[first:], *days[:first])
    tables = _tables(config, unit)
    found = {
        (t, d): _read_entry(run, publish_day(run, t, d)[unit], t, d) for t in tables for d in order
    }
    entries = [
        _against_yesterday(run, found[table, day], before)
        for table in tables
        for before, day in zip(("", *days[:-1]), days, strict=True)
    ]
    inputs = {f"{e.table}/{e.day}": e.fingerprint for e in entries}
    inputs["entries"] = digest(entries)
    if unit == REST:
        inputs |= ingest_truth(run)

    def build(temporary: Path) -> Outcome:
        sums = totals(entries)
        write_json(temporary / "ledger.json", {"entries": listed(entries), "totals": sums})
        return Outcome(rows=sum(t["rows_out"] for t in sums.values()), figures=sums)

    return produce(
        run.output("ingest", unit),
        stage="ingest",
        unit=unit,
        inputs=inputs,
        settings=settings_of(config),
        build=build,
    )


def _tables(config: RunConfig, unit: str) -> list[str]:
    if unit != REST:
        return ["impressions"]
    mapped = [t.table for t in config.source.tables]
    return ["impressions", *(t for t in mapped if t != "impressions")]


def _against_yesterday(run: Run, entry: Entry, before: str) -> Entry:
    """The entry, with what changed between the columns of a day's files and of the day before's."""
    older, now = (columns_of_day(run, entry.table, d) if d else {} for d in (before, entry.day))
    change = difference(older, now) if older and now else ""
    if not change:
        return entry
    log.warning("%s of %s against %s: %s", entry.table, entry.day, before, change)
    changes = (*entry.schema_changes, f"{entry.day} against {before}: {change}")
    return dataclasses.replace(entry, schema_changes=changes)


def _read_entry(run: Run, manifest: Manifest, table: str, day: str) -> Entry:
    figures = manifest.read_figures()
    ledger = from_dict(Entry, figures["ledger"])
    entry = dataclasses.replace(ledger, fingerprint=manifest.fingerprint).checked()
    if table == "impressions" and day == run.config.day and not figures["table_rows"]:
        paths = [t.path for t in run.config.source.tables if t.table == table]
        broken = f" (unreadable: {'; '.join(entry.broken_files)})" if entry.broken_files else ""
        raise DataError(
            f"day without data: no impressions of {day} in {', '.join(paths)} of source "
            f"{run.config.source.name}{broken}; deliver that day's files, or run a day that has "
            "data with DAY=YYYY-MM-DD"
        )
    return entry
