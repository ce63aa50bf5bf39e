"""The golden loss curve: a fixed tiny training gives the committed losses, step by step.

After a change that is meant to move them: `make golden` (CONTRIBUTING.md).
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
# of the loss; rounding with other vector units (ATEN_CPU_CAPABILITY=default) moves it by 1e-6
TOLERANCE = 1e-4
LOW_DISTANCE = 0.01  # of the loss, at every step; the products of bfloat16 have 8 bits


@pytest.fixture(scope="module")
def curves(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[float]]:
    done = subprocess.run(
        [sys.executable, str(HERE / "golden_worker.py"), str(tmp_path_factory.mktemp("home"))],
        env={**os.environ, "PYTHONPATH": str(HERE.parents[1])},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_every_step_has_its_golden_loss(curves):
    golden = json.loads((HERE / "golden_losses.json").read_text())["losses"]
    assert len(golden) > 30
    assert golden[-1] < golden[0], "the golden training learned something"
    assert curves["float32"] == pytest.approx(golden, rel=TOLERANCE)


def test_bfloat16_stays_beside_float32(curves):
    """The matrices' products in bfloat16: no step is lost, and none is far away."""
    low, high = curves["bfloat16"], curves["float32"]
    assert all(math.isfinite(loss) for loss in low)
    assert low != high
    assert low == pytest.approx(high, rel=LOW_DISTANCE)
