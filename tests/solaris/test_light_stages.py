from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("stage", ["candidates", "verify", "publish", "replay", "lookup"])
def test_stages_that_need_no_torch_do_not_load_it(stage: str) -> None:
    code = f"import sys, pipeline.solaris.{stage}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
