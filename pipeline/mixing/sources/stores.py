"""Object stores: s3:// and gs:// paths as files in a cache of the home folder.

A path is listed by stage `land` alone, and each object is fetched once into
lake/remote/<scheme>/<bucket>/<version>/<key>; what else needs it reads that copy. `version` comes
from the key, the size and the ETag (where the store gives none, the time of its last change), so
that a changed object lies in another place and a copy is never stale. Credentials, region and
endpoint come from the environment, as for any other tool (docs/your-own-logs.md).
"""

from __future__ import annotations

import datetime as dt
import fnmatch
import logging
import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pyarrow import fs

from pipeline.mixing.sources.store_errors import explained
from pipeline.run.errors import ConfigError, DataError
from pipeline.run.lock import locked
from pipeline.run.manifest import fingerprint_of
from pipeline.run.paths import confined

log = logging.getLogger(__name__)
SCHEMES = ("s3", "gs")
PARALLEL = 8  # objects fetched at once: stores answer slowly, and answer many at once
SETTINGS = (
    "AWS_ENDPOINT_URL_S3",
    "AWS_ENDPOINT_URL",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "AWS_ACCESS_KEY_ID",
    "AWS_PROFILE",
    "HEADWATER_S3_ANONYMOUS",
    "STORAGE_EMULATOR_HOST",
)
CHUNK_BYTES = 8 << 20
CONNECT_S, ANSWER_S, ATTEMPTS = 5.0, 30.0, 3
_REMOTE = re.compile(r"([a-z][a-z0-9+.-]*)://")
_GLOB = re.compile(r"[*?\[]")


@dataclass(frozen=True, kw_only=True)
class Location:
    """A place in a store; `key` may be a pattern."""

    scheme: str
    bucket: str
    key: str

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}/{self.key}"

    @property
    def prefix(self) -> str:
        """The folders of the key before its first pattern."""
        match = _GLOB.search(self.key)
        return self.key[: match.start()].rpartition("/")[0] if match else self.key.rstrip("/")


@dataclass(frozen=True, kw_only=True)
class StoredObject:
    """One object as listed; `mark` is its ETag or the time of its last change."""

    location: Location
    bytes: int
    mark: str

    @property
    def version(self) -> str:
        """Sixteen hex digits that change with the content."""
        parts = [self.location.key, self.bytes, self.mark]
        return fingerprint_of(parts)[:16]


def is_remote(path: str) -> bool:
    """Whether a mapped path is a URL; `ConfigError` for a scheme that is not supported."""
    match = _REMOTE.match(path)
    if match and match.group(1) not in SCHEMES:
        raise ConfigError(
            f"source.tables.path must be a local path, s3:// or gs://, got {path!r}; "
            "copy the files to one of these"
        )
    return match is not None


def located(path: str) -> Location:
    """The parts of a URL; `ConfigError` when it names no bucket, or leads out of one."""
    where = parsed(path)
    plain = re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", where.bucket)
    if not plain or ".." in where.key.split("/") or not where.key:
        raise ConfigError(
            f"source.tables.path must be like {where.scheme}://bucket/folder/*.parquet, "
            f"got {path!r}; name a bucket and a key in it"
        )
    return where


def parsed(url: str) -> Location:
    """The parts of a URL, unchecked."""
    scheme, _, rest = url.partition("://")
    bucket, _, key = rest.partition("/")
    return Location(scheme=scheme, bucket=bucket, key=key.strip("/"))


def listed(where: Location, suffixes: tuple[str, ...]) -> list[StoredObject]:
    """The objects that a location names, sorted by key; none is no error, a missing bucket is.

    A key is an object, a folder (all objects below it that end in one of `suffixes`) or a glob,
    as for local paths; names that begin with "." or "_" are left out.
    """
    store = _store(where.scheme)
    with explained(where):
        entries = _entries(store, where)
        chosen = [e for e in entries if _wanted(where, _key(where, e.path), suffixes)]
        with ThreadPoolExecutor(PARALLEL) as threads:
            marks = list(threads.map(lambda e: _mark(store, e), chosen))
    found = [
        StoredObject(
            location=Location(
                scheme=where.scheme, bucket=where.bucket, key=_key(where, entry.path)
            ),
            bytes=int(entry.size),
            mark=mark,
        )
        for entry, mark in zip(chosen, marks, strict=True)
    ]
    return sorted(found, key=lambda o: o.location.key)


def folders(where: Location) -> list[str]:
    """Names of the folders and objects directly below the prefix of a location."""
    store = _store(where.scheme)
    with explained(where):
        selector = fs.FileSelector(f"{where.bucket}/{where.prefix}", allow_not_found=True)
        return sorted(entry.base_name for entry in store.get_file_info(selector))


def cached(home: Path, item: StoredObject) -> Path:
    """Where the copy of an object lies, fetched or not; below `home`, whatever its key."""
    where = item.location
    root = confined(home, "lake", "remote", where.scheme, where.bucket, item.version)
    return confined(root, *where.key.split("/"))


def fetch(home: Path, items: list[StoredObject]) -> list[Path]:
    """The copies of objects, in their order; those that are not there yet are fetched."""
    with ThreadPoolExecutor(PARALLEL) as threads:
        return list(threads.map(lambda item: _fetch(home, item), items))


def _fetch(home: Path, item: StoredObject) -> Path:
    """One object's copy; it appears whole, under its name, or not at all."""
    path = cached(home, item)
    if _complete(path, item):
        return path
    where = item.location
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    with locked(path.with_name(f".{path.name}.lock")):
        if _complete(path, item):
            return path
        log.info("fetching %s (%d bytes)", where, item.bytes)
        with temporary.open("wb") as target:
            for chunk in _chunks(where):
                target.write(chunk)
            target.flush()
            os.fsync(target.fileno())
        temporary.replace(path)
    return path


def _chunks(where: Location) -> Iterator[bytes]:
    """An object's content as it is stored; what the store says of it is not a disk's error."""
    with explained(where):
        name = f"{where.bucket}/{where.key}"
        stream = _store(where.scheme).open_input_stream(name, compression=None)
    with stream:
        while True:
            with explained(where):
                chunk = stream.read(CHUNK_BYTES)
            if not chunk:
                return
            yield chunk


def _complete(path: Path, item: StoredObject) -> bool:
    return path.is_file() and path.stat().st_size == item.bytes


def _entries(store: fs.FileSystem, where: Location) -> list[fs.FileInfo]:
    """The objects at or below the prefix; a key without a pattern may be one object."""
    root = f"{where.bucket}/{where.prefix}".rstrip("/")
    if where.prefix and not _GLOB.search(where.key):
        info = store.get_file_info(root)
        if info.type == fs.FileType.File:
            return [info]
    selector = fs.FileSelector(root, recursive=True, allow_not_found=True)
    entries = store.get_file_info(selector)
    if not entries and store.get_file_info(where.bucket).type == fs.FileType.NotFound:
        raise DataError(f"{where} cannot be read: there is no such bucket; check its name")
    return [entry for entry in entries if entry.type == fs.FileType.File]


def _key(where: Location, path: str) -> str:
    return path.removeprefix(where.bucket + "/")


def _wanted(where: Location, key: str, suffixes: tuple[str, ...]) -> bool:
    if key.rpartition("/")[2].startswith((".", "_")):
        return False
    parts, pattern = key.split("/"), where.key.rstrip("/").split("/")
    exact = len(parts) == len(pattern) and "**" not in pattern
    return _covers(parts, pattern) and (exact or key.endswith(suffixes))


def _covers(parts: list[str], pattern: list[str]) -> bool:
    """Whether a pattern names these parts, or a folder that they lie in."""
    if not pattern:
        return True
    if pattern[0] == "**":
        return any(_covers(parts[skip:], pattern[1:]) for skip in range(len(parts) + 1))
    head = bool(parts) and fnmatch.fnmatchcase(parts[0], pattern[0])
    return head and _covers(parts[1:], pattern[1:])


def _mark(store: fs.FileSystem, entry: fs.FileInfo) -> str:
    """The object's ETag, else the time of its last change in nanoseconds."""
    with store.open_input_stream(entry.path, compression=None) as stream:
        metadata = stream.metadata() or {}
    for name, value in metadata.items():
        if str(name if isinstance(name, str) else name.decode()).lower() == "etag":
            return str(value.decode() if isinstance(value, bytes) else value).strip('"')
    return str(entry.mtime_ns)


def _store(scheme: str) -> fs.FileSystem:
    """The store of a scheme, as the environment describes it."""
    return _open(scheme, tuple((name, os.environ.get(name, "")) for name in SETTINGS))


@cache
def _open(scheme: str, settings: tuple[tuple[str, str], ...]) -> fs.FileSystem:
    """A connection per environment: a process that changes it gets another one."""
    given = dict(settings)
    if scheme == "gs":
        address = given["STORAGE_EMULATOR_HOST"]
        plain = {"anonymous": True, "scheme": "http"} if address else {}
        endpoint = re.sub("^https?://", "", address) or None
        patience = dt.timedelta(seconds=ANSWER_S)
        return fs.GcsFileSystem(endpoint_override=endpoint, retry_time_limit=patience, **plain)
    address = given["AWS_ENDPOINT_URL_S3"] or given["AWS_ENDPOINT_URL"]
    endpoint = re.sub("^https?://", "", address).rstrip("/")
    return fs.S3FileSystem(
        endpoint_override=endpoint or None,
        scheme="http" if address.startswith("http://") else "https",
        region=given["AWS_REGION"] or given["AWS_DEFAULT_REGION"] or None,
        anonymous=given["HEADWATER_S3_ANONYMOUS"] == "yes",
        connect_timeout=CONNECT_S,
        request_timeout=ANSWER_S,
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=ATTEMPTS),
    )
