"""Manifests and atomic publish: a folder appears whole, with its manifest, or not at all."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import IO, Any

from pipeline.run.codec import digest, from_dict, to_dict
from pipeline.run.errors import DataError
from pipeline.run.lock import locked

log = logging.getLogger(__name__)
MANIFEST = "manifest.json"


@dataclass(frozen=True, kw_only=True)
class FileEntry:
    """One file of an artefact; `path` is relative to the artefact's folder."""

    path: str
    bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a stage published: files, rows, fingerprints and where it came from.

    `fingerprint` depends on the files' content alone; `figures` holds what people read
    (counts, ledger, costs); wall time is in `seconds` and enters no fingerprint.
    """

    stage: str
    unit: str
    files: tuple[FileEntry, ...]
    rows: int
    fingerprint: str
    inputs: tuple[tuple[str, str], ...]
    config_hash: str
    code_version: str
    seconds: float
    figures: str = "{}"
    schema_hash: str = ""

    @property
    def bytes(self) -> int:
        """Size of all files."""
        return sum(f.bytes for f in self.files)

    def read_figures(self) -> dict[str, Any]:
        """The figures as a dict."""
        return json.loads(self.figures)


@dataclass(kw_only=True)
class Outcome:
    """What a build function returns: row count, schema hash and figures for the manifest."""

    rows: int
    figures: dict[str, Any] = field(default_factory=dict)
    schema_hash: str = ""


def produce(
    target: Path,
    *,
    stage: str,
    unit: str = "",
    inputs: Mapping[str, str],
    settings: object,
    build: Callable[[Path], Outcome],
) -> Manifest:
    """Fill `target` by `build(temporary folder)` and publish it atomically.

    Returns at once when `target` holds a manifest with the same inputs and settings. The
    temporary sibling of a killed attempt is removed; nothing unfinished is ever visible under
    `target`. `build` must write every output below the folder that it is given.
    """
    config_hash = digest(settings)
    wanted = tuple(sorted(inputs.items()))
    target.parent.mkdir(parents=True, exist_ok=True)
    with locked(target.parent / f".{target.name}.lock"):
        done = read_manifest(target, missing_ok=True)
        same = done and (done.inputs, done.config_hash) == (wanted, config_hash)
        if done and same and _whole(target, done):
            log.info("%s %s: up to date (%s)", stage, unit, done.fingerprint[:12])
            return done
        began = time.monotonic()
        temporary = target.parent / f".{target.name}.tmp"
        outcome = _built(temporary, build)
        files = tuple(_entry(temporary, p) for p in sorted(temporary.rglob("*")) if p.is_file())
        manifest = Manifest(
            stage=stage,
            unit=unit,
            files=files,
            rows=outcome.rows,
            fingerprint=fingerprint_of({f.path: f.sha256 for f in files}),
            inputs=wanted,
            config_hash=config_hash,
            code_version=code_version(),
            seconds=round(time.monotonic() - began, 3),
            figures=json.dumps(outcome.figures, sort_keys=True),
            schema_hash=outcome.schema_hash,
        )
        write_json(temporary / MANIFEST, to_dict(manifest))
        _publish(temporary, target)
    made = (manifest.rows, manifest.seconds, manifest.fingerprint[:12])
    log.info("%s %s: %d rows, %.1f s, %s", stage, unit, *made)
    return manifest


def _built(temporary: Path, build: Callable[[Path], Outcome]) -> Outcome:
    """What `build` makes of an empty folder; a full disk gets its room back."""
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        return build(temporary)
    except OSError:  # a disk that is full stays full while half an output lies on it
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def read_manifest(target: Path, *, missing_ok: bool = False) -> Manifest | None:
    """The manifest of a published folder; `DataError` (or None) when there is none."""
    path = target / MANIFEST
    try:
        return from_dict(Manifest, json.loads(path.read_text()))
    except FileNotFoundError:
        if missing_ok:
            return None
        raise DataError(
            f"{target} has no finished output; run the stage that makes it first"
        ) from None


def need_manifest(target: Path) -> Manifest:
    """The manifest of a published folder, or `DataError`."""
    manifest = read_manifest(target)
    if manifest is None:
        raise DataError(f"{target} has no finished output; run the stage that makes it first")
    return manifest


def fingerprint_of(parts: object) -> str:
    """One fingerprint over named fingerprints."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def write_json(path: Path, value: object) -> None:
    """Write JSON as `replacing` does."""
    with replacing(path) as file:
        file.write(json.dumps(value, indent=1, sort_keys=True).encode())


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file to write in the place of `path`: readers see the old one or the new, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def replacing_folder(target: Path) -> Iterator[Path]:
    """A folder to fill in the place of `target`: what is half-filled is never visible there."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.parent / f".{target.name}.{os.getpid()}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        yield temporary
        _publish(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def sha256_file(path: Path) -> str:
    """SHA-256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@cache
def code_version() -> str:
    """Short commit of this checkout, "+" when it has changes, "unknown" outside git."""
    here = Path(__file__).resolve().parents[2]
    try:
        text = subprocess.run(
            ["git", "describe", "--always", "--dirty=+", "--exclude=*"],
            cwd=here,
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return text or "unknown"


def _entry(root: Path, path: Path) -> FileEntry:
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return FileEntry(
        path=str(path.relative_to(root)), bytes=path.stat().st_size, sha256=sha256_file(path)
    )


def _whole(target: Path, manifest: Manifest) -> bool:
    paths = [(target / f.path, f.bytes) for f in manifest.files]
    return all(p.is_file() and p.stat().st_size == size for p, size in paths)


def _publish(temporary: Path, target: Path) -> None:
    if target.exists():
        (target / MANIFEST).unlink(missing_ok=True)
        shutil.rmtree(target)
    temporary.rename(target)
    descriptor = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
