"""A virtual environment for each peer, with pinned versions, apart from the project's own.

They take the torch that the project runs on, from wherever pip or uv is told to find packages.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks._measure import BenchmarkError
from deploy.install import pip_setting, uv_environment

TORCH = "torch==2.13.0"
# requests: deepctr-torch says that it needs it only when it is imported
REQUIREMENTS = {
    "fuxictr": (TORCH, "fuxictr==2.3.10", "polars==1.44.2"),
    "torch-rechub": (TORCH, "torch-rechub==0.9.0"),
    "deepctr-torch": (TORCH, "deepctr-torch==0.3.0", "requests==2.34.2"),
}
SIDES = {
    "fuxictr": "benchmarks._peers.fuxictr_side",
    "torch-rechub": "benchmarks._peers.rechub_side",
    "deepctr-torch": "benchmarks._peers.deepctr_side",
}
STAMP = "installed.txt"


def ready(cache: Path, peer: str) -> Path:
    """The interpreter of a peer's environment below `cache`, which is made when it is not there.

    `BenchmarkError` names what could not be installed.
    """
    folder = cache / "environments" / peer
    python, stamp = folder / "bin" / "python", folder / STAMP
    wanted = "\n".join(REQUIREMENTS[peer])
    if stamp.is_file() and stamp.read_text() == wanted:
        return python
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    print(f"installing {peer} into {folder}", flush=True)
    _run([sys.executable, "-m", "venv", str(folder)], peer, dict(os.environ))
    command, environment = _installer(python)
    _run([*command, *REQUIREMENTS[peer]], peer, environment)
    stamp.write_text(wanted)
    return python


def _installer(python: Path) -> tuple[list[str], dict[str, str]]:
    """uv where the project has it, which is many times faster; else the environment's own pip."""
    uv = shutil.which("uv", path=os.pathsep.join([str(Path(sys.executable).parent), os.defpath]))
    environment = dict(os.environ)
    if uv is None:
        return [str(python), "-m", "pip", "install", "--quiet"], environment
    command = [uv, "pip", "install", "--quiet", "--python", str(python)]
    return command, uv_environment(environment, pip_setting)


def _run(command: list[str], peer: str, environment: dict[str, str]) -> None:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise BenchmarkError(
            f"{peer} could not be installed ({' '.join(REQUIREMENTS[peer])}): {last}; check the "
            "network and pip's index settings and run again, or leave it out with --peers"
        )
