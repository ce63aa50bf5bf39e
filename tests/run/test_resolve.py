"""Resolving a request: one folder per request, a frozen parent, one clear line for mistakes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from pipeline.__main__ import main
from pipeline.run.config import RunConfig, with_overrides
from pipeline.run.errors import DataError
from pipeline.run.manifest import write_json
from pipeline.run.paths import open_run
from pipeline.run.presets import preset
from pipeline.run.resolve import resolve
from pipeline.run.runs import CHAIN, newest_run, unfinished, units, units_of


def decide(folder: Path, champion: dict[str, object] | None, when: float = 0.0) -> None:
    (folder / "promote").mkdir(parents=True, exist_ok=True)
    path = folder / "promote" / "decision.json"
    write_json(path, {"decision": "promoted", "champion": champion})
    if when:
        os.utime(path, (when, when))


def champion(folder: Path, root: Path) -> dict[str, object]:
    (folder / "pretrain" / "model").mkdir(parents=True, exist_ok=True)
    return {
        "day": folder.parent.name,
        "folder": str((folder / "pretrain" / "model").relative_to(root)),
        "cut_us": 5,
        "fingerprint": "f" + folder.name,
    }


def run_of(day: str, root: Path, **overrides: object) -> Path:
    config = with_overrides(preset(day, "smoke"), dict(overrides))
    return resolve(config, root)


def config_in(folder: Path) -> RunConfig:
    return open_run(folder).config


def test_the_folder_is_the_last_line(own_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["resolve", "--day", "2026-11-29", "--size", "smoke"]) == 0
    folder = Path(capsys.readouterr().out.splitlines()[-1])
    assert folder.parent == own_home / "runs" / "2026-11-29"
    assert config_in(folder) == preset("2026-11-29", "smoke")


def test_the_same_request_keeps_run_json_and_its_parent(tmp_path: Path) -> None:
    folder = run_of("2026-11-29", tmp_path)
    before = (folder / "run.json").read_bytes()
    earlier = run_of("2026-11-28", tmp_path)
    decide(earlier, champion(earlier, tmp_path))
    assert run_of("2026-11-29", tmp_path) == folder
    assert (folder / "run.json").read_bytes() == before
    assert config_in(folder).parent is None


def test_the_parent_is_the_champion_of_the_newest_earlier_day(tmp_path: Path) -> None:
    for day in ("2026-11-26", "2026-11-28", "2026-11-30"):
        folder = run_of(day, tmp_path)
        decide(folder, champion(folder, tmp_path))
    parent = config_in(run_of("2026-11-29", tmp_path)).parent
    assert parent is not None
    assert parent.day == "2026-11-28"


def test_a_kept_champion_of_an_older_day_is_the_parent(tmp_path: Path) -> None:
    old, new = run_of("2026-11-27", tmp_path), run_of("2026-11-28", tmp_path)
    decide(old, champion(old, tmp_path))
    decide(new, champion(old, tmp_path))
    parent = config_in(run_of("2026-11-29", tmp_path)).parent
    assert parent is not None
    assert parent.day == "2026-11-27"


def test_another_lineage_is_no_parent(tmp_path: Path) -> None:
    other = run_of("2026-11-28", tmp_path, **{"model.layers": 3})
    decide(other, champion(other, tmp_path))
    assert config_in(run_of("2026-11-29", tmp_path)).parent is None


def test_of_two_runs_of_a_day_the_last_decision_counts(tmp_path: Path) -> None:
    one = run_of("2026-11-28", tmp_path)
    two = run_of("2026-11-28", tmp_path, **{"mix.alpha": 0.5})
    decide(one, champion(one, tmp_path), when=2e9)
    decide(two, champion(two, tmp_path), when=1e9)
    parent = config_in(run_of("2026-11-29", tmp_path)).parent
    assert parent is not None
    assert parent.fingerprint == "f" + one.name


def test_a_day_without_champion_falls_back_to_the_day_before(tmp_path: Path) -> None:
    one, two = run_of("2026-11-27", tmp_path), run_of("2026-11-28", tmp_path)
    decide(one, champion(one, tmp_path))
    decide(two, None)
    parent = config_in(run_of("2026-11-29", tmp_path)).parent
    assert parent is not None
    assert parent.day == "2026-11-27"


def test_a_lost_champion_is_an_error(tmp_path: Path) -> None:
    folder = run_of("2026-11-28", tmp_path)
    decide(folder, champion(folder, tmp_path) | {"folder": "runs/2026-11-28/gone"})
    with pytest.raises(DataError, match="is gone"):
        run_of("2026-11-29", tmp_path)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--surfaces", "feed,tv"], "surfaces must be of source planted, got tv; choose among"),
        (["--size", "huge"], "size must be one of"),
        (["--source", "nowhere"], "source must be one of"),
        (["--source", "none.toml"], "source file none.toml does not exist"),
        (["--overrides", "{'a': 1}"], "overrides must be JSON"),
        (["--overrides", "[1]"], "overrides must be a JSON object"),
        (["--promote", "always"], "promote must be one of"),
        (["--overrides", '{"mix.alpha": 3}'], "mix.alpha must be in (0, 1]"),
    ],
)
def test_a_wrong_request_is_one_line_and_exit_65(
    own_home: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], line: str
) -> None:
    assert main(["resolve", "--day", "2026-11-29", *arguments]) == 65
    error = capsys.readouterr().err.strip()
    assert line in error
    assert "\n" not in error
    assert not (own_home / "runs").exists()


def test_surfaces_keep_the_order_of_the_source(
    own_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = []
    for text in ("reels,feed", "feed, reels"):
        main(["resolve", "--day", "2026-11-29", "--size", "smoke", "--surfaces", text])
        folders.append(capsys.readouterr().out.splitlines()[-1])
    assert folders[0] == folders[1]
    assert config_in(Path(folders[0])).surfaces == ("feed", "reels")


def test_units(tmp_path: Path) -> None:
    folder = run_of("2026-11-29", tmp_path, **{"window.num_groups": 2, "solaris.num_shards": 3})
    assert units(folder, "ingest") == ["feed", "reels", "stories", "rest"]
    assert units(folder, "transfer") == ["feed", "reels", "stories"]
    assert units(folder, "timelines") == ["0", "1"]
    assert units(folder, "precompute") == ["0", "1", "2"]
    assert units(folder, "mix") == [""]


def finish(folder: Path) -> None:
    run = open_run(folder)
    stages = [s for dag in CHAIN.values() for s in dag]
    for number, stage in enumerate(stages):
        for unit in units_of(run, stage):
            path = run.output(stage, unit) / "manifest.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps({"seconds": 1.5}))
            os.utime(path, (1e9 + number, 1e9 + number))


def test_unfinished_names_what_is_missing(tmp_path: Path) -> None:
    folder = run_of("2026-11-29", tmp_path)
    assert "ingest/rest" in unfinished(open_run(folder))
    finish(folder)
    assert unfinished(open_run(folder)) == []
    (folder / "transfer" / "reels" / "manifest.json").unlink()
    assert unfinished(open_run(folder)) == ["transfer/reels"]


def test_a_report_from_before_the_students_is_unfinished(tmp_path: Path) -> None:
    folder = run_of("2026-11-29", tmp_path)
    finish(folder)
    os.utime(folder / "report" / "manifest.json", (1e8, 1e8))
    assert unfinished(open_run(folder)) == ["report"]


def test_the_run_asked_for_last_is_the_newest(tmp_path: Path) -> None:
    one = run_of("2026-11-29", tmp_path)
    two = run_of("2026-11-29", tmp_path, **{"mix.alpha": 0.5})
    os.utime(one / "run.json", (1e9, 1e9))
    assert newest_run("2026-11-29", tmp_path) == two
    run_of("2026-11-29", tmp_path)
    assert newest_run("2026-11-29", tmp_path) == one
