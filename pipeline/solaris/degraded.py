"""Lookups as a serving process makes them: whatever happens to the store, an answer comes.

A store that is down, slow, full or damaged serves the source "none". Faults are counted by kind
and logged at most once a minute each. After a fault of the whole store a circuit answers "none"
without asking, for a while that doubles up to `LONGEST_REST_S`; then one request tries again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final

from pipeline.run.errors import ConfigError, DataError
from pipeline.solaris.lookup import lookup
from pipeline.solaris.serving import Served, no_lookups
from pipeline.solaris.store import CorruptError, Int64s, StoreError
from pipeline.solaris.stores import Place, open_store
from pipeline.solaris.vector_store import VectorStore

log = logging.getLogger(__name__)
FIRST_REST_S: Final = 0.5
LONGEST_REST_S: Final = 30.0
LOG_EVERY_S: Final = 60.0


class Lookups:
    """Lookups in the store at a place, which never raise; close it, or use it as a context.

    `width` is that of the student's vectors: what "none" looks like while no store answers.
    `timeout_s` bounds each wait for a server (default: 20 ms). `faults` counts requests that a
    fault spoiled, by kind: down, slow, full, corrupt, empty, width, unexpected, and `resting` for
    those that the circuit kept away. Safe to use from several threads.
    """

    def __init__(
        self,
        place: Place,
        *,
        width: int,
        timeout_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.faults: Counter[str] = Counter()
        self._place, self._width, self._timeout_s, self._clock = place, width, timeout_s, clock
        self._lock = threading.Lock()
        self._opened = ExitStack()
        self._store: VectorStore | None = None
        self._doubtful = False  # open the store anew before it is asked again
        self._active = 0  # requests under way
        self._rest_s = FIRST_REST_S
        self._rest_until = float("-inf")
        self._logged: dict[str, float] = {}

    def lookup(self, user_B: Int64s, ad_B: Int64s, now_us: int) -> Served:
        """What the store serves for pairs at a time, or nothing for all of them."""
        nothing = no_lookups(len(user_B), self._width)
        if not self._may_ask():
            return nothing
        try:
            served = lookup(self._need_store(), user_B, ad_B, now_us)
            if served.z_Bd.shape != nothing.z_Bd.shape:
                raise ConfigError(f"vectors are not {self._width} wide; publish for this student")
        except Exception as error:  # a student must be served whatever this is
            self._note(error)
            return nothing
        finally:
            with self._lock:
                self._active -= 1
        self._answered()
        return served

    def close(self) -> None:
        """Let the store go."""
        with self._lock:
            self._store = None
            self._opened.close()

    def __enter__(self) -> Lookups:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _may_ask(self) -> bool:
        with self._lock:
            now = self._clock()
            if now < self._rest_until:
                self.faults["resting"] += 1
                return False
            if self._doubtful:
                self._rest_until = now + self._rest_s  # one request tries, the others rest on
            self._active += 1
            return True

    def _need_store(self) -> VectorStore:
        with self._lock:
            if self._doubtful and self._active == 1:
                self._store = None
                self._opened.close()
            if self._store is None:
                opened = open_store(self._place, timeout_s=self._timeout_s)
                self._store = self._opened.enter_context(opened)
            return self._store

    def _answered(self) -> None:
        with self._lock:
            self._doubtful, self._rest_s = False, FIRST_REST_S
            self._rest_until = float("-inf")

    def _note(self, error: Exception) -> None:
        kind = _kind(error)
        if kind in ("corrupt", "width"):  # the store answers, if only damage
            self._answered()
        with self._lock:
            self.faults[kind] += 1
            now = self._clock()
            if kind not in ("corrupt", "width"):
                self._doubtful = True
                self._rest_until = now + self._rest_s
                self._rest_s = min(2 * self._rest_s, LONGEST_REST_S)
            if now - self._logged.get(kind, float("-inf")) < LOG_EVERY_S:
                return
            self._logged[kind] = now
            count = self.faults[kind]
        trace = error if kind == "unexpected" else None
        log.warning("solaris store %s (%d requests so far): %s", kind, count, error, exc_info=trace)


def _kind(error: Exception) -> str:
    if isinstance(error, StoreError):
        return error.kind
    kinds = {CorruptError: "corrupt", DataError: "empty", ConfigError: "width"}
    return next((name for cls, name in kinds.items() if isinstance(error, cls)), "unexpected")
