"""Opens the Solaris store that a config, a run or a command names, wherever it lies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pipeline.run.paths import Run
from pipeline.run.store_url import EMBEDDED, check_store
from pipeline.solaris import lmdb_store, redis_store
from pipeline.solaris.vector_store import VectorStore


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a store lies: `url` is "lmdb" (in `folder`) or a server's (there, under `lineage`)."""

    url: str = EMBEDDED
    folder: Path = Path()
    lineage: str = ""

    def __repr__(self) -> str:  # never a password
        return f"Place({self.folder if self.url == EMBEDDED else 'redis'}, {self.lineage})"


def place_of(run: Run) -> Place:
    """The store of a run's lineage."""
    config = run.config
    return Place(url=config.solaris.store, folder=run.store(), lineage=config.lineage)


@contextmanager
def open_store(
    place: Place | Path,
    *,
    write: bool = False,
    wait_s: float = lmdb_store.WRITER_WAIT_S,
    timeout_s: float | None = None,
) -> Iterator[VectorStore]:
    """The store at a place (a folder: the embedded one); `ConfigError` on an unknown kind.

    A writer waits `wait_s` seconds for another one; `timeout_s` bounds the wait for a server.
    """
    if isinstance(place, Path):
        place = Place(folder=place)
    check_store(place.url, clear_password=True)
    if place.url == EMBEDDED:
        with lmdb_store.open_shelf(place.folder, write=write, wait_s=wait_s) as embedded:
            yield VectorStore(embedded)
    else:
        with redis_store.open_shelf(
            place.url, place.lineage, write=write, wait_s=wait_s, timeout_s=timeout_s
        ) as remote:
            yield VectorStore(remote)
