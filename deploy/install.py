"""Install everything into .venv; does nothing when the requirement files did not change.

Run by make with Python 3.11; standard library only. `--gpu` takes the CUDA sparse kernels.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "headwater.stamp"
UV = "uv==0.13.9"
NEEDED = (3, 11)


def main() -> int:
    """Install when needed; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpu", action="store_true", help="fbgemm-gpu instead of fbgemm-gpu-cpu")
    gpu = parser.parse_args().gpu
    if sys.version_info[:2] != NEEDED:
        print(
            "Headwater needs Python 3.11, this is "
            f"{sys.version_info[0]}.{sys.version_info[1]} ({sys.executable}); "
            "install it and run: make PYTHON=/path/to/python3.11",
            file=sys.stderr,
        )
        return 65
    overrides = ROOT / "deploy" / f"overrides-{'gpu' if gpu else 'cpu'}.txt"
    wanted = stamp(overrides)
    if STAMP.is_file() and STAMP.read_text() == wanted and PYTHON.exists():
        return 0
    try:
        install(overrides)
    except subprocess.CalledProcessError as error:
        print(f"installation failed at: {' '.join(map(str, error.cmd))}", file=sys.stderr)
        return error.returncode
    STAMP.write_text(wanted)
    return 0


def stamp(overrides: Path) -> str:
    """Hash of all that decides what gets installed."""
    files = (ROOT / "requirements.txt", ROOT / "requirements.lock", overrides, Path(__file__))
    text = b"".join(path.read_bytes() for path in files) + f"{sys.version}{ROOT}".encode()
    return hashlib.sha256(text).hexdigest()


def install(overrides: Path) -> None:
    """A fresh .venv with uv in it, then the locked set, then what is built once."""
    began = time.monotonic()
    step(began, f"making {VENV}")
    run(sys.executable, "-m", "venv", "--clear", VENV)
    run(PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", UV)
    step(began, "installing the locked packages (3 GB)")
    run(
        *(VENV / "bin" / "uv", "pip", "install", "--python", PYTHON, "--compile-bytecode"),
        *("-r", ROOT / "requirements.txt", "-c", ROOT / "requirements.lock"),
        *("--override", overrides),
        environment=uv_environment(dict(os.environ), pip_setting),
    )
    step(began, "building DeepSpeed's CPU op (about a minute)")
    warm(began)
    step(began, "installed")


def warm(began: float) -> None:
    """Build ahead; without a C++ compiler training works too, only DeepSpeed says so at start."""
    environment = dict(os.environ)
    environment["PATH"] = os.pathsep.join([str(VENV / "bin"), environment.get("PATH", "")])
    environment["TORCH_EXTENSIONS_DIR"] = str(VENV / "torch_extensions")
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(
        [PYTHON, ROOT / "deploy" / "warm_deepspeed.py"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        # a half-built op keeps its lock file, on which every later build would wait
        shutil.rmtree(VENV / "torch_extensions", ignore_errors=True)
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        step(began, f"not built ({last}); the first training will try again")


def uv_environment(environment: dict[str, str], setting: Callable[[str], str]) -> dict[str, str]:
    """uv does not read pip's settings: hand on where packages are found."""
    links = environment.get("PIP_FIND_LINKS") or setting("find-links")
    if links:
        environment.setdefault("UV_FIND_LINKS", ",".join(links.split()))
    index = environment.get("PIP_INDEX_URL") or setting("index-url")
    if index:
        environment.setdefault("UV_DEFAULT_INDEX", index)
    certificates = environment.get("PIP_CERT") or setting("cert")
    if certificates:
        environment.setdefault("SSL_CERT_FILE", certificates)
    environment.setdefault("UV_LINK_MODE", "copy" if _other_disk(environment) else "hardlink")
    return environment


def pip_setting(name: str) -> str:
    """A global setting of pip, "" when it is not set."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", "config", "get", f"global.{name}"],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() if done.returncode == 0 else ""


def _other_disk(environment: dict[str, str]) -> bool:
    """Whether uv's cache lies on another disk, where it cannot make hard links."""
    cache = Path(environment.get("UV_CACHE_DIR") or Path.home() / ".cache")
    cache.mkdir(parents=True, exist_ok=True)
    return cache.stat().st_dev != ROOT.stat().st_dev


def run(*command: object, environment: dict[str, str] | None = None) -> None:
    """Run a command; `CalledProcessError` when it fails."""
    subprocess.run([str(part) for part in command], check=True, env=environment)


def step(began: float, text: str) -> None:
    """One line of progress."""
    print(f"[{time.monotonic() - began:4.0f} s] {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
