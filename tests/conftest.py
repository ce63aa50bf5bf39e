"""Settings that every test shares: few threads, the op cache of set-up, a home of one's own."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

for name in ("OMP_NUM_THREADS", "POLARS_MAX_THREADS"):
    os.environ.setdefault(name, "1")
if not Path("/dev/nvidiactl").exists():  # before anything imports Triton, which reads it once
    os.environ.setdefault("TRITON_INTERPRET", "1")
os.environ.setdefault("TORCH_EXTENSIONS_DIR", str(Path(sys.prefix) / "torch_extensions"))


@pytest.fixture
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """HEADWATER_HOME in a temporary folder."""
    monkeypatch.setenv("HEADWATER_HOME", str(tmp_path))
    return tmp_path
