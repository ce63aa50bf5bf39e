"""The shelf of a Solaris store on a Redis (or Valkey) server, for many machines.

Records are plain keys under `solaris:<lineage>:g<number>:`; the key `current` names the generation
in use and is read in the same MGET as the records, so an answer is of one moment. Writers hold a
lock with a token and an expiry; the switch and every deletion check the token on the server.
Needs Redis 6.2 or later, one server (no cluster).
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, TypeVar, cast

import numpy as np
import redis
from redis.backoff import NoBackoff
from redis.exceptions import LockError
from redis.lock import Lock
from redis.retry import Retry

from pipeline.run.errors import ConfigError, RetryError
from pipeline.run.store_url import PASSWORD_VARIABLE, check_store, shown
from pipeline.solaris.store import (
    CorruptError,
    Current,
    FaultKind,
    Int64s,
    Kind,
    Reading,
    StoreError,
    current_of,
    text_of,
)

T = TypeVar("T")
READ_TIMEOUT_S: Final = 0.02
WRITE_TIMEOUT_S: Final = 30.0
WRITER_WAIT_S: Final = 600.0
LOCK_S: Final = 60.0  # how long a killed writer is in the way
COMMANDS_PER_TRIP: Final = 1_000
READ_TRIES: Final = 5
# KEYS[1] is the lock, ARGV[1] our token: a writer that lost the lock changes nothing
SWITCH: Final = """
if redis.call('get', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('set', KEYS[2], ARGV[2])
return 1
"""
UNLINK: Final = """
if redis.call('get', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('unlink', unpack(KEYS, 2))
return 1
"""


class SwitchedError(Exception):
    """Another generation came into use since the reading began."""


class RedisReading:
    """A `Reading`: every MGET also reads which generation is in use, and must find the same."""

    def __init__(self, shelf: RedisShelf, text: bytes | None) -> None:
        self._shelf = shelf
        self._text = text
        self.current = current_of(text)
        self.checked = False

    def get(self, kind: Kind, user_N: Int64s) -> list[bytes | None]:
        """Users' records of the generation in use, in the order of the users."""
        if self.current is None or not len(user_N):
            return [None] * len(user_N)
        keys = self._shelf.keys(self.current.number, kind, user_N)
        text, *records = self._shelf.mget([self._shelf.current_key, *keys])
        self.check(text)
        return records

    def check(self, text: bytes | None) -> None:
        """`SwitchedError` unless the entry of the generation in use is still this one."""
        if text != self._text:
            raise SwitchedError
        self.checked = True


class RedisShelf:
    """A `Shelf` on a server; open it with `open_shelf`."""

    def __init__(self, client: redis.Redis, lineage: str, name: str, wait_s: float) -> None:
        self._client = client
        self._prefix = f"solaris:{lineage}:"
        self._name = name
        self._wait_s = wait_s
        self._known: bytes | None = None  # the entry of the generation in use, as last read
        self.current_key = f"{self._prefix}current"

    def read(self, ask: Callable[[Reading], T]) -> T:
        """The answer to what `ask` reads; asked again when the generation was switched."""
        for _ in range(READ_TRIES):
            if current_of(self._known) is None:  # perhaps no more
                (self._known,) = self.mget([self.current_key])
            reading = RedisReading(self, self._known)
            try:
                answer = ask(reading)
                if not reading.checked:
                    reading.check(self.mget([self.current_key])[0])
                return answer
            except SwitchedError:
                self._known = None
        raise StoreError("slow", f"store {self._name} is switched while it is read; try again")

    @contextmanager
    def writing(self) -> Iterator[RedisWriting]:
        """The right to write, for as long as this process lives."""
        lock = self._client.lock(f"{self._prefix}writer", timeout=LOCK_S, thread_local=False)
        with self.told():
            if not lock.acquire(blocking_timeout=self._wait_s):
                raise RetryError(
                    f"store {self._name} has another writer ({self._prefix}writer); wait for it"
                )
            done = threading.Event()
            renewal = threading.Thread(target=_renew, args=(lock, done), daemon=True)
            renewal.start()
            try:
                yield RedisWriting(self, self._client, lock)
            finally:
                done.set()
                renewal.join()
                _release(lock)

    def scan(self, number: int, kind: Kind) -> Iterator[list[tuple[int, bytes]]]:
        """Users and records of a generation, in chunks, by user."""
        names = self.names(f"g{number}:{kind.decode()}:")
        users = sorted(int(name.rpartition(b":")[2]) for name in names)
        for begin in range(0, len(users), COMMANDS_PER_TRIP):
            some = np.array(users[begin : begin + COMMANDS_PER_TRIP], dtype=np.int64)
            records = self.mget(self.keys(number, kind, some))
            yield [(u, r) for u, r in zip(some.tolist(), records, strict=True) if r is not None]

    def used_bytes(self) -> int:
        """Bytes of the server's data, of whatever is on it."""
        with self.told():
            return int(cast(dict, self._client.info("memory"))["used_memory_dataset"])

    def keys(self, number: int, kind: Kind, user_N: Int64s) -> list[str]:
        """The keys of users' records."""
        prefix = f"{self._prefix}g{number}:{kind.decode()}:"
        return [prefix + str(user) for user in user_N.tolist()]

    def names(self, begin: str) -> set[bytes]:
        """All keys of this store that begin so."""
        escaped = re.sub(r"([\\*?\[\]])", r"\\\1", self._prefix + begin)
        with self.told():
            return set(self._client.scan_iter(match=f"{escaped}*", count=10_000))

    def mget(self, keys: list[str]) -> list[bytes | None]:
        """Values of keys, all at one moment."""
        with self.told():
            return cast(list[bytes | None], self._client.mget(keys))

    @contextmanager
    def told(self) -> Iterator[None]:
        """Errors of the server as errors of a store."""
        try:
            yield
        except redis.exceptions.TimeoutError:
            raise StoreError("slow", f"store {self._name} does not answer in time") from None
        except redis.exceptions.OutOfMemoryError:
            raise StoreError("full", f"store {self._name} is full; raise its maxmemory") from None
        except redis.exceptions.AuthenticationError:
            raise StoreError(
                "down", f"store {self._name} refuses the password; set {PASSWORD_VARIABLE}"
            ) from None
        except redis.exceptions.ConnectionError as error:
            kind: FaultKind = "full" if "max number of clients" in str(error) else "down"
            raise StoreError(
                kind, f"store {self._name} cannot be reached: {error}; start it"
            ) from None
        except redis.exceptions.ResponseError as error:
            if str(error).startswith(("MISCONF", "READONLY", "NOAUTH", "NOPERM")):
                raise StoreError("down", f"store {self._name} refuses: {error}") from None
            raise CorruptError(f"store {self._name}: {error}; delete its keys, publish") from None


class RedisWriting:
    """A `Writing` of the process that holds the lock."""

    def __init__(self, shelf: RedisShelf, client: redis.Redis, lock: Lock) -> None:
        self._shelf = shelf
        self._client = client
        self._lock = lock
        self._later_us = 0
        self._switch = client.register_script(SWITCH)
        self._unlink = client.register_script(UNLINK)

    def begin(self, as_of_us: int) -> int:
        """A number for a generation, whose records end later by how late it is written.

        So a day of long ago, which is served at its own times, does not vanish at once.
        """
        with self._shelf.told():
            seconds, micros = self._client.time()
            self._later_us = max(0, seconds * 1_000_000 + micros - as_of_us)
            return int(self._client.incr(f"{self._prefix()}last"))

    def put(
        self, number: int, kind: Kind, user_U: Int64s, records: list[bytes], end_us_U: Int64s | None
    ) -> None:
        """Store records, which the server forgets at their ends; None: at the ends they have."""
        keys = self._shelf.keys(number, kind, user_U)
        ends: list[int | None] = [None] * len(keys)
        if end_us_U is not None:
            ends = (-(-(end_us_U + self._later_us) // 1_000_000)).tolist()
        items = list(zip(keys, records, ends, strict=True))
        for begin in range(0, len(items), COMMANDS_PER_TRIP):
            with self._shelf.told(), self._client.pipeline(transaction=False) as pipeline:
                for key, record, end in items[begin : begin + COMMANDS_PER_TRIP]:
                    pipeline.set(key, record, exat=end, keepttl=end is None)
                pipeline.execute()

    def switch(self, current: Current) -> None:
        """Make a generation the one in use; `RetryError` when another writer has the lock."""
        with self._shelf.told():
            keys = [self._lock.name, self._shelf.current_key]
            self._owned(self._switch(keys, [self._token(), text_of(current)]))

    def delete(self, number: int, kind: Kind, user_U: Int64s) -> None:
        """Delete records of a generation."""
        self._delete(self._shelf.keys(number, kind, user_U))

    def drop(self, keep: int | None) -> None:
        """Delete every generation but one."""
        kept = f"{self._prefix()}g{keep}:".encode()
        names = self._shelf.names("g")
        self._delete(sorted(n.decode() for n in names if not n.startswith(kept)))

    def _delete(self, keys: list[str]) -> None:
        for begin in range(0, len(keys), COMMANDS_PER_TRIP):
            some = keys[begin : begin + COMMANDS_PER_TRIP]
            with self._shelf.told():
                self._owned(self._unlink([self._lock.name, *some], [self._token()]))

    def _token(self) -> bytes:
        return cast(bytes, self._lock.local.token)

    def _prefix(self) -> str:
        return self._shelf.current_key.removesuffix("current")

    def _owned(self, done: object) -> None:
        if not done:
            raise RetryError(f"{self._lock.name} went to another writer; try again")


@contextmanager
def open_shelf(
    url: str,
    lineage: str,
    *,
    write: bool = False,
    wait_s: float = WRITER_WAIT_S,
    timeout_s: float | None = None,
) -> Iterator[RedisShelf]:
    """The shelf of a lineage on the server at `url`; it connects when it is first used.

    `timeout_s` bounds every wait for the server (20 ms to read, 30 s to write). The password is
    the URL's, else that of the environment variable HEADWATER_REDIS_PASSWORD.
    """
    check_store(url, clear_password=True)
    if not re.fullmatch(r"[\w.\-]+", lineage):
        raise ConfigError(f"lineage {lineage!r} must be letters, digits, . _ -; rename it")
    timeout = timeout_s or (WRITE_TIMEOUT_S if write else READ_TIMEOUT_S)
    client = redis.Redis.from_url(
        url,
        password=os.environ.get(PASSWORD_VARIABLE),
        protocol=2,
        socket_timeout=timeout,
        socket_connect_timeout=timeout,
        # once more at once: a server that was restarted has closed our connection
        retry=Retry(NoBackoff(), 1, supported_errors=(redis.exceptions.ConnectionError,)),
    )
    with client:
        yield RedisShelf(client, lineage, shown(url), wait_s)


def _renew(lock: Lock, done: threading.Event) -> None:
    while not done.wait(LOCK_S / 3):
        try:
            lock.reacquire()
        except LockError:
            return  # lost: the switch will refuse
        except redis.exceptions.RedisError:
            continue  # the next turn may reach the server


def _release(lock: Lock) -> None:
    with suppress(LockError, redis.exceptions.RedisError):  # else it ends by itself
        lock.release()
