"""Ingest: foreign rows of a day become canonical partitions, quarantined rows and a ledger.

A unit is a surface (its impressions) or "rest": conversions, engagements, candidates, the
impressions that belong to no configured surface, and the planted truth where there is one.
"""

from __future__ import annotations

import dataclasses
import logging
from functools import cache
from pathlib import Path

import polars as pl
import pyarrow as pa

from data_contracts.schema import CANONICAL_CONVERSIONS, schema_hash
from pipeline.mixing.canonical import REST, bucket_file, partition_folder
from pipeline.mixing.casting import to_text
from pipeline.mixing.cleaning import Cleaned, clean, clean_unassigned, rules_of
from pipeline.mixing.frames import read_frames, write_frame
from pipeline.mixing.hashing import bucket_of
from pipeline.mixing.ledger import Entry, listed, totals
from pipeline.mixing.quarantine import publish_rejected, quarantine_folder
from pipeline.mixing.sources.files import TableRead, files_of, mapping_of, read_table
from pipeline.run.codec import from_dict
from pipeline.run.config import RunConfig
from pipeline.run.errors import ConfigError, DataError
from pipeline.run.manifest import (
    Manifest,
    Outcome,
    fingerprint_of,
    produce,
    sha256_file,
    write_json,
)
from pipeline.run.paths import Run
from pipeline.run.window import window_of

log = logging.getLogger(__name__)


def ingest(run: Run, unit: str) -> Manifest:
    """Publish every window day of a unit and the ledger; finished partitions are left alone.

    `DataError` when the run's own day has no impressions, `ConfigError` for an unknown unit.
    """
    config = run.config
    if unit not in (*config.surfaces, REST):
        raise ConfigError(
            f"ingest unit must be a surface or {REST!r}, got {unit!r}; choose among "
            f"{[*config.surfaces, REST]}"
        )
    entries = [
        _ingest_day(run, unit, table, day)
        for table in _tables(config, unit)
        for day in window_of(config).days
    ]
    inputs = {f"{e.table}/{e.day}": e.fingerprint for e in entries}
    if unit == REST:
        inputs |= _ingest_truth(run)

    def build(temporary: Path) -> Outcome:
        sums = totals(entries)
        write_json(temporary / "ledger.json", {"entries": listed(entries), "totals": sums})
        return Outcome(rows=sum(t["rows_out"] for t in sums.values()), figures=sums)

    return produce(
        run.output("ingest", unit),
        stage="ingest",
        unit=unit,
        inputs=inputs,
        settings=_settings(config),
        build=build,
    )


def _tables(config: RunConfig, unit: str) -> list[str]:
    if unit != REST:
        return ["impressions"]
    mapped = [t.table for t in config.source.tables]
    return ["impressions", *(t for t in mapped if t != "impressions")]


def _settings(config: RunConfig) -> dict[str, object]:
    sparse = [f.name for f in config.features.sparse]
    dense = [f.name for f in config.features.dense]
    return {
        "surfaces": config.surfaces,
        "features": [sparse, dense],
        "buckets": config.window.num_buckets,
        "mapping": config.source.tables,
        "conversions": schema_hash(CANONICAL_CONVERSIONS),
    }


def _ingest_day(run: Run, unit: str, table: str, day: str) -> Entry:
    inputs = {"source": _source_fingerprint(run, table, day)}
    homeless = unit == REST and table == "impressions"  # rows of no surface: quarantine alone
    target = partition_folder(run, table, day, unit)
    if homeless:
        target = quarantine_folder(run, table, day, unit)

    def build(temporary: Path) -> Outcome:
        read = _read(run, table, day)
        rows_in, cleaned = _clean(run.config, unit, table, day, read)
        entry = _entry(table, day, rows_in, read, cleaned)
        figures = {"ledger": dataclasses.asdict(entry), "table_rows": len(read.frame)}
        if homeless:
            write_frame(temporary / "rejected.parquet", cleaned.rejected)
            return Outcome(rows=len(cleaned.rejected), figures=figures)
        publish_rejected(
            quarantine_folder(run, table, day, unit),
            unit=unit,
            inputs=inputs,
            settings=_settings(run.config),
            cleaned=cleaned,
        )
        schema = rules_of(run.config, table).schema
        rows = _write_buckets(temporary, cleaned.frame, run.config.window.num_buckets, schema)
        return Outcome(
            rows=sum(rows), figures=figures | {"bucket_rows": rows}, schema_hash=schema_hash(schema)
        )

    manifest = produce(
        target,
        stage="ingest",
        unit=f"{table} {day} {unit}",
        inputs=inputs,
        settings=_settings(run.config),
        build=build,
    )
    return _read_entry(run, manifest, table, day)


def _source_fingerprint(run: Run, table: str, day: str) -> str:
    mapping = mapping_of(run, table)
    files = files_of(run, mapping, day) if mapping else []
    return fingerprint_of([(p.name, _sha256(p, p.stat().st_mtime_ns)) for p in files])


@cache  # a file of many days is hashed once per process, not once per day
def _sha256(path: Path, _modified_ns: int) -> str:
    return sha256_file(path)


def _read(run: Run, table: str, day: str) -> TableRead:
    read = read_table(run, table, day)
    if read is None:
        raise ConfigError(
            f"source.tables must map {table}, got {[t.table for t in run.config.source.tables]}; "
            "add a mapping"
        )
    return read


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


def _clean(
    config: RunConfig, unit: str, table: str, day: str, read: TableRead
) -> tuple[int, Cleaned]:
    """Rows of the source that belong to the unit, and what cleaning made of them."""
    rules, frame = rules_of(config, table), read.frame
    if table != "impressions":
        return len(frame), clean(rules, frame, day)
    if unit == REST:
        cleaned = clean_unassigned(rules, frame, day)
        return len(cleaned.rejected), cleaned
    cleaned = clean(rules, frame, day, unit)
    mine = to_text(frame["surface"], (unit,)).is_not_null().sum() if len(frame) else 0
    return int(mine), cleaned


def _entry(table: str, day: str, rows_in: int, read: TableRead, cleaned: Cleaned) -> Entry:
    # without folders, so that the same files give the same ledger in every home
    broken = tuple(f"{p.name}: {why.replace(str(p.parent), '')}" for p, why in read.broken)
    folders = {str(p.parent) + "/" for p in read.files}
    changes = tuple(_without(folders, text) for text in read.schema_changes)
    if len(cleaned.rejected):
        log.warning("%s of %s: refused rows %s", table, day, cleaned.reasons)
    return Entry(
        table=table,
        day=day,
        rows_in=rows_in,
        rows_out=len(cleaned.frame),
        quarantined=len(cleaned.rejected) - cleaned.duplicates,
        duplicates=cleaned.duplicates,
        reasons=tuple(sorted(cleaned.reasons.items())),
        broken_files=broken,
        schema_changes=changes,
        defaulted=cleaned.defaulted,
    ).checked()


def _without(folders: set[str], text: str) -> str:
    for folder in sorted(folders):
        text = text.replace(folder, "")
    return text


def _write_buckets(
    folder: Path, frame: pl.DataFrame, num_buckets: int, schema: pa.Schema | None
) -> list[int]:
    if "ts" in frame.columns and not frame["ts"].is_sorted():
        frame = frame.sort("ts", maintain_order=True)
    buckets = bucket_of(frame["user_id"].to_numpy(), num_buckets)
    rows = []
    for bucket in range(num_buckets):
        part = frame.filter(pl.Series(buckets == bucket))
        write_frame(bucket_file(folder, bucket), part, schema)
        rows.append(len(part))
    return rows


def _ingest_truth(run: Run) -> dict[str, str]:
    """Split the planted truth, where there is one, into buckets; evaluation alone reads it."""
    done = {}
    for day in window_of(run.config).days:
        paths = sorted(run.landing("truth", f"day={day}").glob("*.parquet"))
        if paths:
            done[f"truth/{day}"] = _ingest_truth_day(run, day, paths).fingerprint
    return done


def _ingest_truth_day(run: Run, day: str, paths: list[Path]) -> Manifest:
    num_buckets = run.config.window.num_buckets

    def build(temporary: Path) -> Outcome:
        rows = _write_buckets(temporary, read_frames(paths), num_buckets, None)
        return Outcome(rows=sum(rows), figures={"bucket_rows": rows})

    return produce(
        run.lake("truth", f"day={day}"),
        stage="ingest",
        unit=f"truth {day}",
        inputs={"source": fingerprint_of([(p.name, sha256_file(p)) for p in paths])},
        settings={"buckets": num_buckets},
        build=build,
    )
