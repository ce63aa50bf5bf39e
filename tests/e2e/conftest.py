"""One home for all end-to-end tests, in the order of the file: each day follows the one before."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def shared_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """HEADWATER_HOME of the module."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def command(shared_home: Path) -> Command:
    """Run a program of this installation in the shared home; output captured."""
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "HEADWATER_HOME": str(shared_home),
        "HEADWATER_SCHEDULE": "off",
        "AIRFLOW_HOME": str(shared_home / ".airflow"),
        "AIRFLOW_CONFIG": str(ROOT / "airflow.cfg"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT),
    }
    environment.pop("PYTHONDONTWRITEBYTECODE", None)

    def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        program = [sys.executable, "-m", *arguments]
        return subprocess.run(
            program,
            env=environment | variables,
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )

    return run
