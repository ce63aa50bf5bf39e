"""The embedded shelf of a Solaris store: one LMDB file, memory-mapped, one writer, many readers.

Keys begin with the generation's number, so a batch is written beside the one in use; the key
`current` names the generation in use, and one transaction moves it. What a killed writer left
has a number that `current` never named, and the next writer removes it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final, TypeVar, cast

import lmdb

from pipeline.run.errors import RetryError
from pipeline.run.lock import locked
from pipeline.solaris.store import (
    CorruptError,
    Current,
    Int64s,
    Kind,
    Reading,
    StoreError,
    current_of,
    text_of,
)

log = logging.getLogger(__name__)
T = TypeVar("T")
CURRENT: Final = b"current"
LAST: Final = b"last"  # the highest number ever given, as text
FIRST_MAP_BYTES: Final = 16 << 20
WRITES_PER_TRANSACTION: Final = 20_000
READ_TRIES: Final = 5
WRITER_WAIT_S: Final = 600.0


class LmdbReading:
    """A `Reading` of one LMDB transaction."""

    def __init__(self, txn: lmdb.Transaction) -> None:
        self._txn = txn
        # The transactions here give bytes, never views (buffers=False).
        self.current = current_of(cast(bytes | None, txn.get(CURRENT)))

    def get(self, kind: Kind, user_N: Int64s) -> list[bytes | None]:
        """Users' records of the generation in use, in the order of the users."""
        if self.current is None:
            return [None] * len(user_N)
        get = self._txn.get
        return cast(list[bytes | None], [get(k) for k in _keys(self.current.number, kind, user_N)])


class LmdbShelf:
    """A `Shelf` in a folder, and its `Writing`; open it with `open_shelf`."""

    def __init__(self, environment: lmdb.Environment, folder: Path, wait_s: float) -> None:
        self._env = environment
        self._folder = folder
        self._file = folder / "lmdb" / "data.mdb"
        self._path = str(self._file)
        self._page_size = environment.stat()["psize"]
        self._inode = os.stat(self._path).st_ino
        self._wait_s = wait_s

    def read(self, ask: Callable[[Reading], T]) -> T:
        """The answer to what `ask` reads within one transaction."""
        return self._read(lambda txn: ask(LmdbReading(txn)))

    @contextmanager
    def writing(self) -> Iterator[LmdbShelf]:
        """The right to write, of one process at a time."""
        with locked(self._folder / "writer.lock", wait_s=self._wait_s):
            self._env.reader_check()  # forget readers that were killed: they keep old pages
            yield self

    def begin(self, as_of_us: int) -> int:
        """A number that no generation ever had; nothing here ends by itself."""
        number = int(self._read(lambda txn: txn.get(LAST)) or 0) + 1
        self._commit([(LAST, str(number).encode())])
        return number

    def put(
        self, number: int, kind: Kind, user_U: Int64s, records: list[bytes], end_us_U: Int64s | None
    ) -> None:
        """Store records of a generation; `compact` removes those that ended."""
        items = list(zip(_keys(number, kind, user_U), records, strict=True))
        for begin in range(0, len(items), WRITES_PER_TRANSACTION):
            self._commit(items[begin : begin + WRITES_PER_TRANSACTION])

    def switch(self, current: Current) -> None:
        """Make a generation the one in use and see it on the disk."""
        self._commit([(CURRENT, text_of(current))])
        self._env.sync(True)

    def delete(self, number: int, kind: Kind, user_U: Int64s) -> None:
        """Delete records of a generation."""
        self._delete(_keys(number, kind, user_U))

    def drop(self, keep: int | None) -> None:
        """Delete every generation but one."""
        for number in self._read(_numbers):
            if number != keep:
                for chunk in self._chunks(_prefix(number)):
                    self._delete([key for key, _ in chunk])

    def scan(self, number: int, kind: Kind) -> Iterator[list[tuple[int, bytes]]]:
        """Users and records of a generation, in chunks; safe while they are changed."""
        for chunk in self._chunks(_prefix(number) + kind):
            yield [(int.from_bytes(key[-8:], "big", signed=True), value) for key, value in chunk]

    def used_bytes(self) -> int:
        """Bytes of the file."""
        return self._file.stat().st_size

    def _commit(self, items: list[tuple[bytes, bytes]]) -> None:
        def put() -> None:
            with self._env.begin(write=True) as txn, txn.cursor() as cursor:
                cursor.putmulti(items)

        self._grown(put)

    def _delete(self, keys: list[bytes]) -> None:
        def delete() -> None:
            with self._env.begin(write=True) as txn:
                for key in keys:
                    txn.delete(key)

        self._grown(delete)

    def _grown(self, write: Callable[[], None]) -> None:
        """Run a write transaction, doubling the map for as long as it is too small."""
        while True:
            try:
                write()
                return self._fill_file()
            except lmdb.MapFullError:
                size = 2 * self._env.info()["map_size"]
                log.info("store grows to %d MiB", size >> 20)
                self._env.set_mapsize(size)
            except lmdb.MapResizedError:
                self._env.set_mapsize(0)
            except (lmdb.DiskError, OSError) as error:
                raise RetryError(
                    f"store {self._folder} cannot be written: {error}; free some disk"
                ) from None

    def _fill_file(self) -> None:
        """Let the file hold every page that LMDB counts, so that a shorter one is a damaged one."""
        with self._file.open("r+b") as file:
            if self.used_bytes() < self._page_bytes():
                file.truncate(self._page_bytes())

    def _page_bytes(self) -> int:
        return (self._env.info()["last_pgno"] + 1) * self._page_size

    def _read(self, read: Callable[[lmdb.Transaction], T]) -> T:
        for _ in range(READ_TRIES):
            try:
                self._need_whole_file()
                with self._env.begin() as txn:
                    return read(txn)
            except lmdb.MapResizedError:  # another process grew it
                self._env.set_mapsize(0)
            except lmdb.ReadersFullError:
                raise StoreError(
                    "full", f"store {self._folder} has all the readers it can; stop some"
                ) from None
            except lmdb.Error as error:
                raise CorruptError(
                    f"store {self._folder} is damaged: {error}; delete it and publish again"
                ) from None
        raise StoreError("slow", f"store {self._folder} grows while it is read; try again")

    def _need_whole_file(self) -> None:
        # Reading a mapped page beyond the end of the file would kill the process.
        try:
            file = os.stat(self._path)
        except FileNotFoundError:
            raise StoreError("down", f"{self._file} was deleted; publish again") from None
        if file.st_ino != self._inode:
            raise StoreError("down", f"{self._file} was replaced; open it again")
        if file.st_size < (wanted := self._page_bytes()):
            raise CorruptError(
                f"{self._file} is cut off at {file.st_size} of {wanted} bytes; "
                "delete it and publish again"
            )

    def _chunks(self, prefix: bytes) -> Iterator[list[tuple[bytes, bytes]]]:
        start: bytes | None = prefix
        while start is not None:
            items, start = self._read(partial(_scan, prefix=prefix, start=start))
            if items:
                yield items


@contextmanager
def open_shelf(
    folder: Path, *, write: bool = False, wait_s: float = WRITER_WAIT_S
) -> Iterator[LmdbShelf]:
    """The shelf in `folder`; `StoreError` when it is to be read and is not there.

    A writer waits `wait_s` seconds for another one. A process may hold one shelf open once at a
    time (a rule of LMDB).
    """
    data = folder / "lmdb"
    file = data / "data.mdb"
    if not write and not file.is_file():
        raise StoreError("down", f"{folder} holds no Solaris store; run the publish stage first")
    data.mkdir(parents=True, exist_ok=True)
    size = max(FIRST_MAP_BYTES, file.stat().st_size if file.is_file() else 0)
    try:
        environment = lmdb.open(str(data), map_size=size, readonly=not write, max_readers=512)
    except lmdb.Error as error:
        raise CorruptError(f"{file} is no LMDB file: {error}; delete it, publish again") from None
    with environment:
        yield LmdbShelf(environment, folder, wait_s)


def _prefix(number: int) -> bytes:
    return b"g" + number.to_bytes(4, "big")


def _keys(number: int, kind: Kind, user_N: Int64s) -> list[bytes]:
    prefix, ids = _prefix(number) + kind, user_N.astype(">i8").tobytes()
    return [prefix + ids[i : i + 8] for i in range(0, len(ids), 8)]


def _numbers(txn: lmdb.Transaction) -> list[int]:
    """Numbers of all generations that hold keys, by jumping from one to the next."""
    numbers = []
    with txn.cursor() as cursor:
        found = cursor.set_range(b"g")
        while found and cursor.key()[:1] == b"g":
            numbers.append(int.from_bytes(cursor.key()[1:5], "big"))
            found = cursor.set_range(_prefix(numbers[-1] + 1))
    return numbers


def _scan(
    txn: lmdb.Transaction, prefix: bytes, start: bytes
) -> tuple[list[tuple[bytes, bytes]], bytes | None]:
    items: list[tuple[bytes, bytes]] = []
    with txn.cursor() as cursor:
        found = cursor.set_range(start)
        while found:
            key, value = cast(tuple[bytes, bytes], cursor.item())
            if not key.startswith(prefix):
                break
            if len(items) == WRITES_PER_TRANSACTION:
                return items, key
            items.append((key, value))
            found = cursor.next()
    return items, None
