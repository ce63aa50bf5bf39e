"""Published sets that the user downloaded: their files become landing tables, streamed.

All tables of a set appear together in lake/landing/<source>/set, with one manifest that counts the
files' rows, what was landed of them, and what lacked a profile.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline.mixing.sources import aliccp, kuairand, taobaoad
from pipeline.mixing.sources.delimited import Malformed
from pipeline.run.errors import DataError
from pipeline.run.manifest import (
    Manifest,
    Outcome,
    produce,
    read_manifest,
    sha256_file,
    write_json,
)
from pipeline.run.paths import Run
from pipeline.run.published import PUBLISHED, published_files

log = logging.getLogger(__name__)
ADAPTERS_VERSION = "1"  # raise it when an adapter's output changes
FOLDER = "set"  # below the landing folder
Files = dict[str, tuple[Path, ...]]
ADAPTERS: dict[str, Callable[[Files, Path, Malformed], dict[str, int]]] = {
    "taobaoad": taobaoad.adapt,
    "aliccp": aliccp.adapt,
    "kuairand": kuairand.adapt,
}


def is_published(run: Run) -> bool:
    """Whether the run's source is a set whose files the user brings."""
    return run.config.source.name in PUBLISHED


def land_published(run: Run) -> Manifest:
    """The set's landing tables, made from `source.files` unless that was done before.

    Without `source.files` what an earlier run landed is used. `DataError` names a missing or
    unreadable file, where it is published and its licence.
    """
    source = run.config.source
    wanted, target = PUBLISHED[source.name], run.landing(FOLDER)
    if not source.files:
        done = read_manifest(target, missing_ok=True)
        if done is not None:
            return done
    files = published_files(wanted, source.files)
    inputs = {role: _content(run, paths) for role, paths in files.items()}

    def build(folder: Path) -> Outcome:
        malformed = Malformed()
        counts = ADAPTERS[source.name](files, folder, malformed)
        if malformed.count:
            log.warning("%s: %d malformed lines left out", source.name, malformed.count)
            write_json(folder / "malformed.json", malformed.lines)
        if not counts["impressions"]:
            raise DataError(
                f"{files[wanted.files[0][0]][0]} has no rows; download it again from {wanted.where}"
            )
        figures = {"counts": counts, "malformed_lines": malformed.count, "licence": wanted.licence}
        return Outcome(rows=counts["impressions"], figures=figures)

    return produce(
        target,
        stage="land",
        unit=source.name,
        inputs=inputs,
        settings={"adapters": ADAPTERS_VERSION},
        build=build,
    )


def _content(run: Run, paths: tuple[Path, ...]) -> str:
    """A fingerprint of files' content; of files that did not change it is remembered."""
    return "+".join(_remembered(run, path) for path in paths)


def _remembered(run: Run, path: Path) -> str:
    """SHA-256 of a file of many gigabytes, read again only when its size or time changed."""
    record = run.landing("_files.json")
    try:
        known: dict[str, Any] = json.loads(record.read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        known = {}
    status = path.stat()
    marks = [status.st_size, status.st_mtime_ns]
    entry = known.get(str(path.resolve()))
    if entry and entry["marks"] == marks:
        return str(entry["sha256"])
    digest = sha256_file(path)
    record.parent.mkdir(parents=True, exist_ok=True)
    write_json(record, known | {str(path.resolve()): {"marks": marks, "sha256": digest}})
    return digest
