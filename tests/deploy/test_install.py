"""The installer: what it checks, when it runs, and what it hands to uv."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def install() -> ModuleType:
    spec = importlib.util.spec_from_file_location("install", ROOT / "deploy" / "install.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def pinned(name: str) -> dict[str, str]:
    lines = (ROOT / name).read_text().splitlines()
    return dict(re.split("==", line, maxsplit=1) for line in lines if "==" in line[:60])


def test_every_direct_requirement_is_in_the_lock() -> None:
    direct, lock = pinned("requirements.txt"), pinned("requirements.lock")
    assert {k: v for k, v in direct.items() if lock.get(k) != v} == {}
    assert not [v for v in lock.values() if "+" in v]


def test_wrong_python_is_one_clear_line(
    install: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["install.py"])
    monkeypatch.setattr(install, "NEEDED", (3, 99))
    assert install.main() == 65
    error = capsys.readouterr().err.strip()
    assert error.startswith("Headwater needs Python 3.11")
    assert "\n" not in error


def test_unchanged_files_install_nothing(
    install: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    installed: list[Path] = []
    monkeypatch.setattr(sys, "argv", ["install.py"])
    monkeypatch.setattr(install, "STAMP", tmp_path / "stamp")
    monkeypatch.setattr(install, "PYTHON", Path(sys.executable))
    monkeypatch.setattr(install, "install", installed.append)
    assert install.main() == 0
    assert install.main() == 0
    assert len(installed) == 1
    monkeypatch.setattr(sys, "argv", ["install.py", "--gpu"])
    assert install.main() == 0
    assert [path.name for path in installed] == ["overrides-cpu.txt", "overrides-gpu.txt"]


def test_overrides_never_install_both_sparse_packages() -> None:
    for kind, kept in (("cpu", "fbgemm-gpu-cpu"), ("gpu", "fbgemm-gpu")):
        lines = (ROOT / "deploy" / f"overrides-{kind}.txt").read_text().splitlines()
        never = {line.split("==")[0] for line in lines if "never" in line and "==" in line}
        assert never == {"fbgemm-gpu", "fbgemm-gpu-cpu"} - {kept}


def test_pip_settings_reach_uv(install: ModuleType) -> None:
    settings = {"find-links": "/wheels\n/more", "index-url": "", "cert": ""}
    made = install.uv_environment({"UV_CACHE_DIR": str(ROOT)}, lambda name: settings[name])
    assert made["UV_FIND_LINKS"] == "/wheels,/more"
    assert "UV_DEFAULT_INDEX" not in made
    made = install.uv_environment(
        {"PIP_FIND_LINKS": "/env", "PIP_INDEX_URL": "https://mirror/simple"}, lambda name: ""
    )
    assert made["UV_FIND_LINKS"] == "/env"
    assert made["UV_DEFAULT_INDEX"] == "https://mirror/simple"
