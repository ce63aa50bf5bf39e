"""The checks of an installation read what is pinned as the installer does."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline import doctor


def requirements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    (tmp_path / "requirements.txt").write_text(text)
    monkeypatch.setattr(doctor, "REPOSITORY", tmp_path)


def test_this_installation_has_the_pinned_versions() -> None:
    assert doctor.locked_versions().endswith("direct requirements as pinned")


def test_markers_are_no_part_of_a_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rich = doctor.installed("rich")
    text = f'# pinned\nrich=={rich}; sys_platform == "linux"\nnone==1; sys_platform == "win32"\n'
    requirements(tmp_path, monkeypatch, text)
    assert doctor.locked_versions() == "1 direct requirements as pinned"


def test_another_version_and_a_missing_package_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requirements(tmp_path, monkeypatch, "rich==0.0.1\nno-such-package==2.0\n")
    with pytest.raises(RuntimeError, match=r"rich .* instead of ==0.0.1; no-such-package missing"):
        doctor.locked_versions()
