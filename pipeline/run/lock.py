"""A file lock that ends with its process, however that process dies."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.run.errors import RetryError


@contextmanager
def locked(path: Path, *, wait_s: float = 600.0) -> Iterator[None]:
    """Hold an exclusive lock on `path`; `RetryError` names the holder after `wait_s` seconds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + wait_s
    with path.open("a+") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    file.seek(0)
                    holder = file.read().strip() or "unknown"
                    raise RetryError(
                        f"{path} is held by process {holder}; wait for it or stop it"
                    ) from None
                time.sleep(0.2)
        file.seek(0)
        file.truncate()
        file.write(f"{os.getpid()}@{os.uname().nodename}")
        file.flush()
        yield
