"""`python -m pipeline doctor`: is this installation able to run a day? One line per check."""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement

from pipeline.run.environment import airflow_home, state_folder
from pipeline.run.errors import EXIT_CONTRACT, EXIT_OK
from pipeline.run.paths import REPOSITORY, free_gb, home
from pipeline.run.servers import describe, pools

FREE_GB = 5.0


@dataclass(frozen=True, kw_only=True)
class Check:
    """One line: what was looked at, whether it is right, what was seen or has to be done."""

    name: str
    right: bool
    text: str


def main(argv: list[str]) -> int:
    """Print all checks; exit code 65 when one of them is wrong."""
    argparse.ArgumentParser(prog="python -m pipeline doctor", description=__doc__).parse_args(argv)
    logging.getLogger().setLevel(logging.ERROR)  # what packages log while they load is no finding
    wrong = 0
    for name, check in CHECKS.items():
        try:
            done = Check(name=name, right=True, text=check())
        except Exception as error:  # whatever an import of a broken package raises
            done = Check(name=name, right=False, text=f"{type(error).__name__}: {error}")
        wrong += not done.right
        print(f"{'ok ' if done.right else 'BAD'}  {done.name:16} {done.text}", flush=True)
    print(f"{wrong} problems" if wrong else "all is well")
    return EXIT_CONTRACT if wrong else EXIT_OK


def python() -> str:
    """Python 3.11."""
    if sys.version_info[:2] != (3, 11):
        raise RuntimeError(f"Python 3.11 is needed, this is {sys.version.split()[0]}")
    return f"{sys.version.split()[0]} at {sys.executable}"


def locked_versions() -> str:
    """Direct requirements are installed in their exact versions."""
    wrong, count = [], 0
    for line in (REPOSITORY / "requirements.txt").read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        wanted = Requirement(line)
        if wanted.name == "fbgemm-gpu-cpu" or (wanted.marker and not wanted.marker.evaluate()):
            continue
        count += 1
        found = installed(wanted.name)
        if found is None or not wanted.specifier.contains(found.split("+")[0], prereleases=True):
            wrong.append(f"{wanted.name} {found or 'missing'} instead of {wanted.specifier}")
    if wrong:
        raise RuntimeError(f"{'; '.join(wrong)}: run make install")
    return f"{count} direct requirements as pinned"


def sparse_triple() -> str:
    """torch, torchrec and one of the fbgemm packages, which work together."""
    cpu, gpu = installed("fbgemm-gpu-cpu"), installed("fbgemm-gpu")
    if cpu and gpu:
        raise RuntimeError(
            "fbgemm-gpu and fbgemm-gpu-cpu are both installed and overwrite each other: "
            "remove .venv, run make install"
        )
    import torch
    from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor

    table = EmbeddingBagConfig(name="t", embedding_dim=4, num_embeddings=8, feature_names=["f"])
    ids = KeyedJaggedTensor(
        keys=["f"], values=torch.tensor([1, 2, 3]), lengths=torch.tensor([1, 2])
    )
    out = EmbeddingBagCollection(tables=[table])(ids).values()
    if out.shape != (2, 4):
        raise RuntimeError(f"torchrec gave shape {tuple(out.shape)} instead of (2, 4)")
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    kernels = f"fbgemm-gpu {gpu}" if gpu else f"fbgemm-gpu-cpu {cpu}"
    return f"torch {torch.__version__}, torchrec {installed('torchrec')}, {kernels}, {device}"


def deepspeed() -> str:
    """DeepSpeed imports, and whether its CPU op is built already."""
    module = importlib.import_module("deepspeed")
    folder = Path(os.environ.get("TORCH_EXTENSIONS_DIR", Path(sys.prefix) / "torch_extensions"))
    built = any(folder.rglob("deepspeed_shm_comm.so"))
    note = "CPU op built" if built else "CPU op not built: the first training compiles it"
    return f"{module.__version__}, {note}"


def airflow() -> str:
    """Airflow reads airflow.cfg, finds the three DAGs' folder and LocalExecutor."""
    environment = os.environ | {
        "AIRFLOW_HOME": str(airflow_home()),
        "AIRFLOW_CONFIG": str(REPOSITORY / "airflow.cfg"),
    }
    done = subprocess.run(
        [sys.executable, "-m", "airflow", "config", "get-value", "core", "executor"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip().splitlines()[-1] if done.stderr else "no output")
    return f"{installed('apache-airflow')}, {done.stdout.strip().splitlines()[-1]}"


def mlflow() -> str:
    """MLflow's tracking client imports."""
    return f"{importlib.import_module('mlflow.tracking') and installed('mlflow')}"


def disk() -> str:
    """Some gigabytes are free where runs are written."""
    free = free_gb()
    if free < FREE_GB:
        raise RuntimeError(f"{free:.1f} GB left at {home()}: free some, or set HEADWATER_HOME")
    return f"{free:.0f} GB free at {home()}"


def writable() -> str:
    """The folders that runs and servers write to."""
    for folder in (home() / "runs", home() / "lake", state_folder(), airflow_home()):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    return f"runs, lake and server folders in {home()}"


def pool_file() -> str:
    """The pools that tasks name."""
    return ", ".join(f"{name} {pool['slots']}" for name, pool in pools().items())


def running() -> str:
    """What runs now."""
    return describe().splitlines()[0]


def installed(name: str) -> str | None:
    """Version of an installed package, or None."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


CHECKS: dict[str, Callable[[], str]] = {
    "python": python,
    "packages": locked_versions,
    "torch + torchrec": sparse_triple,
    "deepspeed": deepspeed,
    "airflow": airflow,
    "mlflow": mlflow,
    "disk": disk,
    "writable": writable,
    "pools": pool_file,
    "servers": running,
}
