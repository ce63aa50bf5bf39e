"""Settings of the process that runs a stage; they change speed and nothing else."""

from __future__ import annotations

import ctypes
import os

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
_KEEP_BYTES = 1 << 30


def prepare() -> None:
    """Let idle OpenMP threads sleep, and let the allocator keep what it freed.

    Must run before torch is loaded. Threads that spin stall each other on busy cores; tensors of
    some megabytes are otherwise given back to the system and faulted in again at every step.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return  # not glibc: nothing to tune
    mallopt(_M_MMAP_THRESHOLD, _KEEP_BYTES)
    mallopt(_M_TRIM_THRESHOLD, _KEEP_BYTES)
    mallopt(_M_TOP_PAD, 1 << 24)
