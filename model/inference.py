"""Forward passes over many batches, several at a time."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch

B = TypeVar("B")
T = TypeVar("T")


def forward_all(
    forward: Callable[[B], T], batches: Iterable[B], *, workers: int | None = None
) -> Iterator[T]:
    """Results of `forward` in the batches' order; `workers` batches (one per core) run abreast.

    Each runs on one torch thread: the ops of a small model are too short to be shared out, and the
    results do not depend on the number of workers. At most `workers` + 1 batches are in memory.
    """
    workers = workers or os.cpu_count() or 1

    def run(batch: B) -> T:
        with torch.inference_mode():  # of this thread alone
            return forward(batch)

    with ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        waiting: deque[Future[T]] = deque()
        for batch in batches:
            waiting.append(pool.submit(run, batch))
            if len(waiting) > workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
