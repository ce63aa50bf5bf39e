"""Which backend an op runs on, decided once per kind of device and said once, with the reason."""

from __future__ import annotations

import importlib.util
import logging
import os
from functools import cache
from typing import Literal

Backend = Literal["auto", "eager", "triton"]
log = logging.getLogger(__name__)


@cache
def choose_backend(backend: str = "auto", device: str = "cpu") -> tuple[str, str]:
    """("eager" or "triton", the reason) for tensors on a kind of device.

    `ValueError` for an unknown backend, and for Triton where it cannot run.
    """
    if backend not in ("auto", "eager", "triton"):
        raise ValueError(f"backend must be auto, eager or triton, got {backend!r}; choose one")
    chosen, reason = _decide(backend, device)
    log.info("kernels on %s: %s (%s)", device, chosen, reason)
    return chosen, reason


def _decide(backend: str, device: str) -> tuple[str, str]:
    if backend == "eager":
        return "eager", "asked for"
    why_not = _why_no_triton(device)
    if backend == "auto":
        if device == "cpu":
            return "eager", "tensors are on the CPU"
        return ("eager", why_not) if why_not else ("triton", f"tensors are on {device}")
    if why_not:
        raise ValueError(f"backend triton cannot run: {why_not}; use backend='auto'")
    return "triton", "asked for"


def _why_no_triton(device: str) -> str:
    """What keeps Triton from running there; "" when nothing does."""
    if importlib.util.find_spec("triton") is None:
        return "the package triton is not installed"
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    if device == "cpu" and not interpreted:
        return "tensors are on the CPU and TRITON_INTERPRET=1 is not set"
    return ""
