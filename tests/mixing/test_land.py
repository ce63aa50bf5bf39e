from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from source_day import read_day

from pipeline.mixing.land import land
from pipeline.run.codec import to_dict
from pipeline.run.config import RunConfig, SourceConfig, TableMapping, with_overrides
from pipeline.run.errors import DataError
from pipeline.run.manifest import write_json
from pipeline.run.paths import Run, run_folder
from pipeline.run.presets import preset
from pipeline.run.window import window_of

DAY = "2026-11-20"
TINY = {
    "source.planted.rows_per_day": 600,
    "source.planted.users": 60,
    "source.planted.ads": 30,
    "source.planted.categories": 5,
}


def make_run(home: Path, config: RunConfig) -> Run:
    folder = run_folder(config, home)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "run.json", to_dict(config))
    return Run(folder=folder, config=config)


@pytest.fixture
def planted_run(tmp_path: Path) -> Run:
    return make_run(tmp_path, with_overrides(preset(DAY, "smoke"), TINY))


def foreign(tmp_path: Path, *mappings: TableMapping, day: str = DAY) -> Run:
    source = SourceConfig(name="mine", tables=mappings)
    return make_run(tmp_path, replace(preset(day, "smoke"), source=source))


def test_land_plants_every_day_of_the_window_and_shows_each_table(planted_run: Run) -> None:
    manifest = land(planted_run)
    days = window_of(planted_run.config).days
    index = json.loads((planted_run.output("land") / "index.json").read_text())
    assert set(index["days"]) == set(days)
    for day in days:
        for table in ("impressions", "conversions", "engagements", "candidates", "truth"):
            path = planted_run.landing(table, f"day={day}", "part-0.parquet")
            assert path.is_file()
            assert index["days"][day][table][0]["bytes"] == path.stat().st_size
        read = read_day(planted_run, "impressions", day)
        assert read.frame.height == index["days"][day]["impressions"][0]["rows"] > 0
    assert manifest.rows > 0


def test_land_twice_is_the_same_and_generates_nothing_again(planted_run: Run) -> None:
    first = land(planted_run)
    path = planted_run.landing("impressions", f"day={DAY}", "part-0.parquet")
    written = path.stat().st_mtime_ns
    assert land(planted_run) == first
    assert path.stat().st_mtime_ns == written


def test_a_removed_or_cut_landing_file_comes_back_with_the_same_content(planted_run: Run) -> None:
    first = land(planted_run)
    shown = planted_run.landing("conversions", f"day={DAY}", "part-0.parquet")
    content = shown.read_bytes()
    shown.unlink()
    assert land(planted_run).fingerprint == first.fingerprint
    assert shown.read_bytes() == content
    os.truncate(shown, 10)
    assert land(planted_run).fingerprint == first.fingerprint
    assert shown.read_bytes() == content


def test_killed_in_the_middle_land_leaves_whole_files_and_a_rerun_equals(tmp_path: Path) -> None:
    config = with_overrides(
        preset(DAY, "smoke"),
        TINY | {"source.planted.rows_per_day": 3_000, "source.planted.seed": 5},
    )
    unkilled = land(make_run(tmp_path / "a", config))
    run = make_run(tmp_path / "b", config)
    code = (
        "import sys; from pipeline.run.paths import open_run; "
        "from pipeline.mixing.land import land; land(open_run(sys.argv[1]))"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(run.folder)])
    deadline = time.monotonic() + 60
    while not list(run.landing().glob("impressions/*/*.parquet")) and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (run.output("land") / "manifest.json").exists()
    for path in run.landing().glob("*/day=*/*.parquet"):
        pl.read_parquet(path)  # what is visible is whole
    assert land(run).fingerprint == unkilled.fingerprint


def test_a_day_without_data_names_day_path_and_the_nearest_days(tmp_path: Path) -> None:
    mapping = TableMapping(table="impressions", path="logs/{day}.csv", format="csv")
    run = foreign(tmp_path, mapping)
    (tmp_path / "logs").mkdir()
    for day in ("2026-11-01", "2026-11-12", "2026-12-24"):
        (tmp_path / "logs" / f"{day}.csv").write_text("impression_id\n1\n")
    with pytest.raises(DataError, match=r"no impressions for day 2026-11-20 .*2026-11-12"):
        land(run)


def test_a_known_set_that_was_never_fetched_says_how_to_fetch_it(tmp_path: Path) -> None:
    run = make_run(tmp_path, preset("2019-11-29", "smoke", "openbandit"))
    with pytest.raises(DataError, match="python -m pipeline fetch openbandit"):
        land(run)


def test_a_source_without_impressions_is_refused(tmp_path: Path) -> None:
    run = foreign(tmp_path, TableMapping(table="conversions", path="c.csv", format="csv"))
    with pytest.raises(DataError, match="maps no impressions"):
        land(run)


def test_land_of_files_follows_their_content_and_not_their_times(tmp_path: Path) -> None:
    run = foreign(tmp_path, TableMapping(table="impressions", path="logs/{day}.csv", format="csv"))
    path = tmp_path / "logs" / f"{DAY}.csv"
    path.parent.mkdir()
    path.write_text("impression_id\n1\n")
    first = land(run).fingerprint
    os.utime(path, (0, 0))
    assert land(run).fingerprint == first
    path.write_text("impression_id\n2\n")
    assert land(run).fingerprint != first
