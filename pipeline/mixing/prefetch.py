"""A thread that prepares the next items while the last one is in use."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")
_WAIT_S = 0.1


def prefetched(make: Callable[[int], T], indices: Iterable[int], ahead: int = 4) -> Iterator[T]:
    """`make(i)` for every index, in order, up to `ahead` items early; errors reach the caller.

    The thread ends when the iterator is exhausted, closed or collected.
    """
    ready: queue.Queue[tuple[T | None, BaseException | None]] = queue.Queue(maxsize=ahead)
    stop = threading.Event()

    def put(item: T | None, error: BaseException | None) -> None:
        while not stop.is_set():
            try:
                return ready.put((item, error), timeout=_WAIT_S)
            except queue.Full:
                continue

    def work() -> None:
        try:
            for index in indices:
                if stop.is_set():
                    return
                put(make(index), None)
            put(None, StopIteration())
        except Exception as error:  # handed over to the consumer, who raises it
            put(None, error)

    thread = threading.Thread(target=work, name="prefetch", daemon=True)
    thread.start()
    try:
        while True:
            item, error = ready.get()
            if isinstance(error, StopIteration):
                return
            if error is not None:
                raise error
            yield item  # type: ignore[misc]
    finally:
        stop.set()
        thread.join()
