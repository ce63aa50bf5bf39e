"""The embedded Solaris store: one LMDB file, memory-mapped, one writer and many readers.

Keys begin with the generation's number, so a batch is written beside the one in use; the key
`current` names the generation in use, and one transaction moves it. What a killed writer left
has a number that `current` never named, and the next writer removes it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final, TypeVar, cast

import lmdb
import numpy as np

from pipeline.run.codec import from_dict, to_dict
from pipeline.run.errors import DataError, RetryError
from pipeline.run.lock import locked
from pipeline.solaris.records import gather, pack_records, recent_lists, record_of
from pipeline.solaris.store import (
    RECENT,
    Generation,
    Int64s,
    Pairs,
    RecentLists,
    Vectors,
    newest_of_pairs,
)

log = logging.getLogger(__name__)
T = TypeVar("T")
CURRENT: Final = b"current"
LAST: Final = b"last"  # the highest number ever given, as text
PAIR, USER = b"p", b"u"
FIRST_MAP_BYTES: Final = 16 << 20
WRITES_PER_TRANSACTION: Final = 20_000
READ_TRIES: Final = 5


class LmdbStore:
    """A `VectorStore` in a folder; open it with `open_store`."""

    def __init__(self, environment: lmdb.Environment, folder: Path) -> None:
        self._env = environment
        self._folder = folder

    def generation(self) -> Generation | None:
        """The generation in use, None in an empty store."""
        current = self._read(_current)
        return current[1] if current else None

    def publish(self, generation: Generation, batches: Iterable[Vectors]) -> int:
        """Write a generation beside the one in use and switch to it; see `VectorStore`."""
        with locked(self._folder / "writer.lock"):
            used = self.generation()
            if used and used.fingerprint == generation.fingerprint:
                log.info("generation %s is in use already", used.fingerprint[:12])
                return self.size()
            if used and used.day > generation.day:
                log.info("day %s is in use, older %s is not stored", used.day, generation.day)
                return 0
            self._drop_unused()
            number = self._next_number()
            kept = sum(self._write(number, generation, batch) for batch in batches)
            record = json.dumps({"number": number, **to_dict(generation)}, sort_keys=True)
            self._commit([(CURRENT, record.encode())])
            self._env.sync(True)
            self._drop_unused()
        return kept

    def pairs(self, user_B: Int64s, ad_B: Int64s, now_us: int) -> Pairs:
        """Exact lookups at a time."""

        def read(txn: lmdb.Transaction) -> Pairs:
            number, generation = _need_current(txn, self._folder)
            keys = _pair_keys(number, user_B, ad_B)
            record = record_of(generation)
            rows_B, found_B = gather(_get(txn, keys), record)
            found_B &= generation.alive(rows_B["written_at"], now_us)
            rows_B[~found_B] = np.zeros((), dtype=record)
            return Pairs(
                found_B=found_B,
                written_at_B=rows_B["written_at"].astype(np.int64),
                score_B=rows_B["score"].astype(np.float32),
                z_Bd=rows_B["z"],
            )

        return self._read(read)

    def recent(self, user_B: Int64s, now_us: int) -> RecentLists:
        """Users' recent lists at a time, newest first."""

        def read(txn: lmdb.Transaction) -> RecentLists:
            number, generation = _need_current(txn, self._folder)
            record = record_of(generation)
            lists = np.dtype((record, (RECENT,)))
            rows_BS, _ = gather(_get(txn, _user_keys(number, user_B)), lists)
            found_BS = rows_BS["written_at"] != 0
            found_BS &= generation.alive(rows_BS["written_at"].astype(np.int64), now_us)
            rows_BS[~found_BS] = np.zeros((), dtype=record)
            return RecentLists(
                found_BS=found_BS,
                written_at_BS=rows_BS["written_at"].astype(np.int64),
                z_BSd=rows_BS["z"],
            )

        return self._read(read)

    def compact(self, now_us: int) -> int:
        """Delete vectors whose life ended by `now_us`, and old generations; returns how many."""
        with locked(self._folder / "writer.lock"):
            current = self._read(_current)
            removed = self._drop_unused()
            if current is None:
                return removed
            number, generation = current
            last_written = now_us - generation.ttl_us
            record = record_of(generation)

            def expired(value: bytes) -> bool:
                newest = np.frombuffer(value, dtype=record)["written_at"].max()
                return int(newest) <= last_written

            removed += self._delete_where(_prefix(number) + PAIR, expired)
            self._delete_where(_prefix(number) + USER, expired)
        return removed

    def size(self) -> int:
        """Pairs of the generation in use."""
        current = self._read(_current)
        if current is None:
            return 0
        return sum(len(k) for k in self._chunks(_prefix(current[0]) + PAIR, _any))

    def content(self) -> Iterator[tuple[bytes, bytes]]:
        """Keys (without the generation's number) and values of the generation in use, in order."""
        current = self._read(_current)
        if current is None:
            return
        prefix = _prefix(current[0])
        with self._env.begin() as txn, txn.cursor() as cursor:
            found = cursor.set_range(prefix)
            while found:
                key, value = cursor.item()
                if not key.startswith(prefix):
                    return
                yield key[len(prefix) :], value
                found = cursor.next()

    def _write(self, number: int, generation: Generation, batch: Vectors) -> int:
        living = batch.written_at_N + generation.ttl_us > generation.as_of_us
        kept = newest_of_pairs(batch.take(living))
        if not len(kept):
            return 0
        record = record_of(generation)
        rows_N = pack_records(kept, record)
        self._put(_pair_keys(number, kept.user_N, kept.ad_N), rows_N.tobytes(), record.itemsize)
        users_U, lists_US = recent_lists(kept, rows_N, record)
        self._put(_user_keys(number, users_U), lists_US.tobytes(), RECENT * record.itemsize)
        return len(kept)

    def _put(self, keys: list[bytes], data: bytes, size: int) -> None:
        for begin in range(0, len(keys), WRITES_PER_TRANSACTION):
            chunk = keys[begin : begin + WRITES_PER_TRANSACTION]
            offset = begin * size
            items = [
                (key, data[offset + i * size : offset + (i + 1) * size])
                for i, key in enumerate(chunk)
            ]
            self._commit(items)

    def _commit(self, items: list[tuple[bytes, bytes]]) -> None:
        self._grown(lambda: self._put_items(items))

    def _put_items(self, items: list[tuple[bytes, bytes]]) -> None:
        with self._env.begin(write=True) as txn, txn.cursor() as cursor:
            cursor.putmulti(items)

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
                return write()
            except lmdb.MapFullError:
                size = 2 * self._env.info()["map_size"]
                log.info("store grows to %d MiB", size >> 20)
                self._env.set_mapsize(size)
            except lmdb.MapResizedError:
                self._env.set_mapsize(0)
            except lmdb.DiskError as error:
                raise RetryError(
                    f"store {self._folder} cannot be written: {error}; free some disk"
                ) from None

    def _read(self, read: Callable[[lmdb.Transaction], T]) -> T:
        for _ in range(READ_TRIES):
            try:
                with self._env.begin() as txn:
                    return read(txn)
            except lmdb.MapResizedError:  # another process grew it
                self._env.set_mapsize(0)
        raise RetryError(f"store {self._folder} keeps growing while it is read; try again")

    def _next_number(self) -> int:
        last = self._read(lambda txn: txn.get(LAST))
        number = int(last or 0) + 1
        self._commit([(LAST, str(number).encode())])
        return number

    def _drop_unused(self) -> int:
        """Delete every generation but the one in use; returns how many pairs went."""
        current = self._read(_current)
        keep = _prefix(current[0]) if current else None
        removed = 0
        for number in self._read(_numbers):
            if _prefix(number) != keep:
                removed += self._delete_where(_prefix(number) + PAIR, _any)
                self._delete_where(_prefix(number), _any)
        return removed

    def _delete_where(self, prefix: bytes, wanted: Callable[[bytes], bool]) -> int:
        removed = 0
        for keys in self._chunks(prefix, wanted):
            self._delete(keys)
            removed += len(keys)
        return removed

    def _chunks(self, prefix: bytes, wanted: Callable[[bytes], bool]) -> Iterator[list[bytes]]:
        """Keys below a prefix whose values are wanted, in chunks; safe while they are deleted."""
        start: bytes | None = prefix
        while start is not None:
            keys, start = self._read(partial(_scan, prefix=prefix, start=start, wanted=wanted))
            if keys:
                yield keys


@contextmanager
def open_store(folder: Path, *, write: bool = False) -> Iterator[LmdbStore]:
    """The store in `folder`; `DataError` when it is to be read and is not there.

    A process may hold one store open once at a time (a rule of LMDB).
    """
    data = folder / "lmdb"
    if not write and not (data / "data.mdb").is_file():
        raise DataError(f"{folder} holds no Solaris store; run the publish stage first")
    data.mkdir(parents=True, exist_ok=True)
    size = max(FIRST_MAP_BYTES, _file_bytes(data / "data.mdb"))
    with lmdb.open(str(data), map_size=size, readonly=not write, max_readers=512) as environment:
        yield LmdbStore(environment, folder)


def _any(_: bytes) -> bool:
    return True


def _file_bytes(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _prefix(number: int) -> bytes:
    return b"g" + number.to_bytes(4, "big")


def _get(txn: lmdb.Transaction, keys: list[bytes]) -> list[bytes | None]:
    # The transactions here give bytes, never views (buffers=False).
    return cast(list[bytes | None], [txn.get(key) for key in keys])


def _current(txn: lmdb.Transaction) -> tuple[int, Generation] | None:
    (text,) = _get(txn, [CURRENT])
    if text is None:
        return None
    record = json.loads(text)
    return record.pop("number"), from_dict(Generation, record)


def _need_current(txn: lmdb.Transaction, folder: Path) -> tuple[int, Generation]:
    current = _current(txn)
    if current is None:
        raise DataError(f"store {folder} is empty; run the publish stage first")
    return current


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
    txn: lmdb.Transaction, prefix: bytes, start: bytes, wanted: Callable[[bytes], bool]
) -> tuple[list[bytes], bytes | None]:
    keys: list[bytes] = []
    with txn.cursor() as cursor:
        found = cursor.set_range(start)
        while found:
            key, value = cast(tuple[bytes, bytes], cursor.item())
            if not key.startswith(prefix):
                break
            if len(keys) == WRITES_PER_TRANSACTION:
                return keys, key
            if wanted(value):
                keys.append(key)
            found = cursor.next()
    return keys, None


def _pair_keys(number: int, user_N: Int64s, ad_N: Int64s) -> list[bytes]:
    ids_N = np.stack([user_N, ad_N], axis=1).astype(">i8")
    return _keys(_prefix(number) + PAIR, ids_N.tobytes(), 16)


def _user_keys(number: int, user_N: Int64s) -> list[bytes]:
    return _keys(_prefix(number) + USER, user_N.astype(">i8").tobytes(), 8)


def _keys(prefix: bytes, ids: bytes, size: int) -> list[bytes]:
    return [prefix + ids[i : i + size] for i in range(0, len(ids), size)]
