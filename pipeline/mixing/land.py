"""Stage `land`: the source's files for the run's days are there, and their content is on record.

Planted days that are missing are generated; for other sources the files must exist.
"""

from __future__ import annotations

import datetime as dt
import logging
import os
import re
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa

from pipeline.mixing.sources.files import files_of, object_entry, stored_objects
from pipeline.mixing.sources.published import is_published, land_published
from pipeline.mixing.sources.stores import StoredObject, fetch, folders, is_remote, parsed
from pipeline.mixing.synthetic import conversion_window_us, generate_day, planted_of
from pipeline.run.config import TableMapping
from pipeline.run.errors import DataError
from pipeline.run.manifest import (
    FileEntry,
    Manifest,
    Outcome,
    fingerprint_of,
    produce,
    sha256_file,
    write_json,
)
from pipeline.run.paths import Run
from pipeline.run.progress import Progress
from pipeline.run.window import window_of

log = logging.getLogger(__name__)
PUBLIC_SETS = ("openbandit", "movielens", "tafeng")
DayFiles = dict[str, list[dict[str, str | int]]]


def land(run: Run, unit: str = "") -> Manifest:
    """Publish index.json: for each day of the window the files of each table with their hashes.

    Files of published sets (docs/sources.md) become landing tables first. Raises `DataError` when
    a source that is not planted has no impressions on the run's day.
    """
    days = window_of(run.config).days
    if run.config.source.kind == "planted":
        index = _planted(run, days)
    else:
        _require_impressions(run)
        if is_published(run):
            land_published(run)
        known = _Known()
        index = {day: _delivered(run, day, known) for day in days}
        _require_day(run, index)
    rows = sum(
        int(entry.get("rows", 0)) for tables in index.values() for entry in tables["impressions"]
    )
    prints = {day: fingerprint_of(tables) for day, tables in index.items()}

    def build(folder: Path) -> Outcome:
        write_json(folder / "index.json", {"days": index, "fingerprints": prints})
        missing = [day for day, tables in index.items() if not _flat(tables)]
        size = sum(int(f["bytes"]) for tables in index.values() for f in _flat(tables))
        figures = {"days": len(index), "days_without_files": missing, "bytes": size}
        return Outcome(rows=rows, figures=figures)

    return produce(
        run.output("land"),
        stage="land",
        inputs=prints,
        settings=replace(run.config.source, files=""),
        build=build,
    )


def _flat(tables: DayFiles) -> list[dict[str, str | int]]:
    return [entry for entries in tables.values() for entry in entries]


def _planted(run: Run, days: tuple[str, ...]) -> dict[str, DayFiles]:
    """Generate what is missing, oldest first; a day appears whole or not at all."""
    sold: dict[int, pa.Table] = {}
    index: dict[str, DayFiles] = {}
    with Progress("plant days", len(days)) as progress:
        for day in days:
            index[day] = _plant(run, day, sold)
            progress.step()
    return index


def _plant(run: Run, day: str, sold: dict[int, pa.Table]) -> DayFiles:
    world = planted_of(run.config)

    def build(folder: Path) -> Outcome:
        rows = generate_day(run.config, day, folder, sold=sold)
        return Outcome(rows=rows["impressions"], figures={"rows": rows})

    made = run.landing("_days", f"day={day}")
    manifest = produce(
        made,
        stage="plant",
        unit=day,
        inputs={},
        settings=(world, run.config.surfaces, conversion_window_us(run.config)),
        build=build,
    )
    rows = manifest.read_figures()["rows"]
    tables: DayFiles = {}
    for entry in manifest.files:
        _show(made, run.landing(), entry)
        table = Path(entry.path).parts[0]
        tables.setdefault(table, []).append(
            {"path": entry.path, "bytes": entry.bytes, "sha256": entry.sha256, "rows": rows[table]}
        )
    return {name: tables[name] for name in tables if name != "truth"} | {"truth": tables["truth"]}


def _show(made: Path, landing: Path, entry: FileEntry) -> None:
    """Put a finished file at landing/<table>/day=D: a hard link, so that it takes no room."""
    shown = landing / entry.path
    if shown.is_file() and shown.samefile(made / entry.path):
        return
    shown.parent.mkdir(parents=True, exist_ok=True)
    temporary = shown.with_name(f".{shown.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    try:
        os.link(made / entry.path, temporary)
    except OSError:  # a file system without hard links
        shutil.copyfile(made / entry.path, temporary)
    temporary.replace(shown)


@dataclass(kw_only=True)
class _Known:
    """What was found out already, of files and objects that hold many days."""

    hashes: dict[Path, str] = field(default_factory=dict)
    objects: dict[str, list[StoredObject]] = field(default_factory=dict)


def _delivered(run: Run, day: str, known: _Known) -> DayFiles:
    """The files of a day by table; objects of a store are fetched."""
    found: DayFiles = {}
    hashes = known.hashes
    for mapping in run.config.source.tables:
        if is_remote(mapping.path):
            place = mapping.path.replace("{day}", day)
            if place not in known.objects:
                known.objects[place] = stored_objects(mapping, day)
            fetch(run.home, known.objects[place])
            found[mapping.table] = [object_entry(item) for item in known.objects[place]]
            continue
        files = files_of(run, mapping, day)
        hashes |= {p: sha256_file(p) for p in files if p not in hashes}
        found[mapping.table] = [
            {"path": _name(run, p), "bytes": p.stat().st_size, "sha256": hashes[p]} for p in files
        ]
    return found


def _name(run: Run, path: Path) -> str:
    return str(path.relative_to(run.home)) if path.is_relative_to(run.home) else str(path)


def _require_impressions(run: Run) -> None:
    """`DataError` unless the source maps impressions and a known set was fetched whole."""
    name = run.config.source.name
    if not any(m.table == "impressions" for m in run.config.source.tables):
        raise DataError(
            f"source {name!r} maps no impressions table; "
            "add one to source.tables (docs/your-own-logs.md)"
        )
    if name in PUBLIC_SETS and not run.landing("source.json").is_file():
        raise DataError(
            f"source {name!r} is not (wholly) in {run.landing()}; "
            f"get it first: python -m pipeline fetch {name}"
        )


def _require_day(run: Run, index: dict[str, DayFiles]) -> None:
    """`DataError` unless the run's own day has impressions; it names the nearest days."""
    day = run.config.day
    if index[day]["impressions"]:
        return
    mapping = next(m for m in run.config.source.tables if m.table == "impressions")
    near = nearest_days(days_there(run, mapping), day)
    remedy = (
        f"the nearest days that exist: {', '.join(near)}"
        if near
        else "no day exists there: check source.tables.impressions.path"
    )
    raise DataError(
        f"source {run.config.source.name!r} has no impressions for day {day} "
        f"({mapping.path}); {remedy}"
    )


def days_there(run: Run, mapping: TableMapping) -> list[str]:
    """All days for which the mapped path has files, sorted; empty when it has no {day}."""
    if "{day}" not in mapping.path:
        return []
    if is_remote(mapping.path):
        return _days_stored(mapping)
    before, after = (
        part.replace("{landing}", str(run.landing())) for part in mapping.path.split("{day}", 1)
    )
    folder = (run.home / before).parent if not before.endswith("/") else run.home / before
    prefix = "" if before.endswith("/") else (run.home / before).name
    date = re.compile(re.escape(prefix) + r"(\d{4}-\d\d-\d\d)")
    found = {m.group(1) for p in folder.glob("*") if (m := date.match(p.name))}
    return sorted(d for d in found if after is not None and files_of(run, mapping, d))


def _days_stored(mapping: TableMapping) -> list[str]:
    """Days that the names beside {day} in an s3:// or gs:// path show."""
    before = mapping.path.partition("{day}")[0]
    parent, _, prefix = before.rpartition("/")
    date = re.compile(re.escape(prefix) + r"(\d{4}-\d\d-\d\d)")
    names = folders(parsed(parent))
    return sorted({match.group(1) for name in names if (match := date.match(name))})


def nearest_days(days: list[str], day: str, count: int = 4) -> list[str]:
    """The days that lie nearest to a day, in order."""
    wanted = dt.date.fromisoformat(day)
    near = sorted(days, key=lambda d: (abs((dt.date.fromisoformat(d) - wanted).days), d))
    return sorted(near[:count])
