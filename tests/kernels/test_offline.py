"""Every GPU kernel compiles for chips that are not here and keeps its numbers in registers."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("chip", ["90", "100"])
def test_all_programs_fit(chip):
    # a fresh process: in this one kernels may be interpreted
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "kernels.offline", "--widths", "64", "--chips", chip],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(f"| sm_{chip} |") == 17


def test_a_stack_that_the_program_asks_for_is_no_spill():
    from kernels.offline import asked_for

    assert asked_for(".local .align 4 .b8 \t__local_depot0[28];") == 32
    assert asked_for(".reg .b64 %SP;") == 0
