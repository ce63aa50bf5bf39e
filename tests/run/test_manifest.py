"""An output appears whole or not at all, and again only when something changed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipeline.run.errors import DataError
from pipeline.run.manifest import (
    Manifest,
    Outcome,
    need_manifest,
    produce,
    read_manifest,
    replacing_folder,
)

ROOT = Path(__file__).resolve().parents[2]
SLOW = """
import sys, time
from pathlib import Path
from pipeline.run.manifest import Outcome, produce

def build(folder):
    (folder / "a.txt").write_text("half of it")
    print("halfway", flush=True)
    time.sleep(60)
    return Outcome(rows=1)

produce(Path(sys.argv[1]), stage="s", inputs={"x": "1"}, settings={}, build=build)
"""


class Builder:
    """Writes two files and counts how often it was asked to."""

    def __init__(self, text: str = "hello") -> None:
        self.text, self.calls = text, 0

    def __call__(self, folder: Path) -> Outcome:
        self.calls += 1
        (folder / "a.txt").write_text(self.text)
        (folder / "deep").mkdir()
        (folder / "deep" / "b.bin").write_bytes(b"\0" * 10)
        return Outcome(rows=3, figures={"kept": 3})


def make(target: Path, build: Builder, x: str = "1", alpha: float = 0.5) -> Manifest:
    return produce(target, stage="s", inputs={"x": x}, settings={"alpha": alpha}, build=build)


def test_output_has_files_and_a_manifest(tmp_path: Path) -> None:
    made = make(tmp_path / "s", Builder())
    assert [f.path for f in made.files] == ["a.txt", "deep/b.bin"]
    assert made.rows == 3
    assert made.bytes == 15
    assert made.read_figures() == {"kept": 3}
    assert read_manifest(tmp_path / "s") == made


def test_the_second_call_returns_at_once(tmp_path: Path) -> None:
    build = Builder()
    assert make(tmp_path / "s", build) == make(tmp_path / "s", build)
    assert build.calls == 1


@pytest.mark.parametrize("change", [{"x": "2"}, {"alpha": 0.6}])
def test_changed_inputs_or_settings_recompute(tmp_path: Path, change: dict) -> None:
    build = Builder()
    first = make(tmp_path / "s", build)
    second = make(tmp_path / "s", build, **change)
    assert build.calls == 2
    assert second.fingerprint == first.fingerprint  # same content, other origin


@pytest.mark.parametrize("damage", ["remove", "cut"])
def test_a_damaged_output_is_made_again(tmp_path: Path, damage: str) -> None:
    build = Builder()
    first = make(tmp_path / "s", build)
    file = tmp_path / "s" / "a.txt"
    file.unlink() if damage == "remove" else file.write_text("h")
    assert make(tmp_path / "s", build).fingerprint == first.fingerprint
    assert file.read_text() == "hello"


def test_an_error_leaves_nothing_and_the_old_output_stays(tmp_path: Path) -> None:
    def broken(folder: Path) -> Outcome:
        (folder / "a.txt").write_text("bad")
        raise DataError("no rows")

    make(tmp_path / "s", Builder())
    with pytest.raises(DataError):
        produce(tmp_path / "s", stage="s", inputs={"x": "2"}, settings={}, build=broken)
    assert (tmp_path / "s" / "a.txt").read_text() == "hello"
    assert need_manifest(tmp_path / "s").rows == 3


def test_kill_in_the_middle_leaves_nothing_and_a_rerun_ends_equal(tmp_path: Path) -> None:
    target = tmp_path / "killed"
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW, str(target)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "halfway"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not target.exists()
    with pytest.raises(DataError, match="no finished output"):
        need_manifest(target)
    began = time.monotonic()
    rerun, unkilled = make(target, Builder()), make(tmp_path / "fresh", Builder())
    assert time.monotonic() - began < 10  # the dead process holds no lock
    assert rerun.fingerprint == unkilled.fingerprint
    assert sorted(p.name for p in target.iterdir()) == ["a.txt", "deep", "manifest.json"]


def test_fingerprint_is_of_the_content(tmp_path: Path) -> None:
    one = make(tmp_path / "one", Builder())
    same = make(tmp_path / "same", Builder())
    other = make(tmp_path / "other", Builder("other"))
    assert one.fingerprint == same.fingerprint
    assert one.fingerprint != other.fingerprint


def test_a_folder_is_replaced_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "out" / "feed"
    with replacing_folder(target) as made:
        (made / "a").write_text("1")

    def fail() -> None:
        with replacing_folder(target) as made:
            (made / "b").write_text("2")
            raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        fail()
    assert [p.name for p in target.parent.rglob("*")] == ["feed", "a"]
    with replacing_folder(target) as made:
        (made / "b").write_text("2")
        assert [p.name for p in target.iterdir()] == ["a"]
    assert [p.name for p in target.parent.rglob("*")] == ["feed", "b"]
