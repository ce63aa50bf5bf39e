"""Opens the Solaris store that a config, a run or a command names, wherever it lies."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pipeline.run.errors import ConfigError
from pipeline.run.paths import Run, confined, open_run
from pipeline.run.store_url import EMBEDDED, check_store, shown
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


def add_place(parser: argparse.ArgumentParser) -> None:
    """The arguments that name a store: --run, --home or --url, and --lineage."""
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("--run", help="a run folder: the store of its lineage")
    place.add_argument("--home", help="a home folder: its embedded store, when it has one")
    place.add_argument("--url", help="redis://host:port/db: the store of --lineage there")
    parser.add_argument("--lineage", default="", help="which store of --home or --url")


def place_from(arguments: argparse.Namespace) -> Place:
    """The place that the arguments of `add_place` name."""
    if arguments.run:
        return place_of(open_run(arguments.run))
    if arguments.url:
        check_store(arguments.url, clear_password=True)
        if not arguments.lineage:
            raise ConfigError(f"--url {shown(arguments.url)} needs --lineage; name one")
        return Place(url=arguments.url, lineage=arguments.lineage)
    root = Path(arguments.home).resolve() / "store"
    if arguments.lineage:
        return Place(folder=confined(root, arguments.lineage))
    lineages = sorted(p.name for p in root.iterdir() if p.is_dir()) if root.is_dir() else []
    if not lineages:
        raise ConfigError(f"--home {arguments.home} holds no Solaris store; publish one first")
    if len(lineages) > 1:
        raise ConfigError(
            f"--home {arguments.home} holds the stores {lineages}; name one by --lineage"
        )
    return Place(folder=root / lineages[0])


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
