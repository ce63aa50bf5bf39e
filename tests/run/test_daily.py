"""The daily command: what it checks before it starts anything, and what it prints."""

from __future__ import annotations

import argparse
import dataclasses
import datetime as dt
import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from pipeline.__main__ import main
from pipeline.run import daily, servers
from pipeline.run.errors import ConfigError, DataError, RetryError
from pipeline.run.paths import open_run
from pipeline.run.presets import preset
from pipeline.run.resolve import config_of, request_parser, resolve
from pipeline.run.runs import CHAIN, units_of
from pipeline.run.summary import summary
from pipeline.run.trigger import abandon_lost, trigger, trigger_form
from pipeline.run.watch import stage_lines

DAY = "2026-11-29"


def land(home: Path, source: str, days: list[str]) -> None:
    folder = home / "lake" / "landing" / source
    folder.mkdir(parents=True)
    (folder / "source.json").write_text(json.dumps({"days": days, "rows": 3}))


def finished_run(home: Path) -> Path:
    folder = resolve(preset(DAY, "smoke"), home)
    run = open_run(folder)
    for number, stage in enumerate(s for dag in CHAIN.values() for s in dag):
        for unit in units_of(run, stage):
            path = run.output(stage, unit) / "manifest.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps({"seconds": 1.5}))
            os.utime(path, (1e9 + number, 1e9 + number))
    return folder


def test_default_day_of_planted_data_is_yesterday() -> None:
    yesterday = dt.datetime.now(dt.UTC).date() - dt.timedelta(days=1)
    assert daily.default_day("planted") == yesterday.isoformat()


def test_default_day_of_a_fetched_source_is_its_last(own_home: Path) -> None:
    land(own_home, "openbandit", ["2019-11-25", "2019-11-24"])
    assert daily.default_day("openbandit") == "2019-11-25"


def test_an_unknown_source_is_named_before_its_day() -> None:
    with pytest.raises(ConfigError, match="source must be one of"):
        daily.default_day("nowhere")


def test_own_logs_need_a_day() -> None:
    with pytest.raises(DataError, match="name one"):
        daily.default_day("mine.toml")


def test_a_day_without_data_is_one_clear_line(
    own_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    land(own_home, "openbandit", ["2019-11-24", "2019-11-25"])
    assert main(["daily", "--source", "openbandit", "--day", "2019-12-24"]) == 65
    error = capsys.readouterr().err.strip()
    assert "source openbandit has no data of 2019-12-24" in error
    assert error.endswith("choose a day from 2019-11-24 to 2019-11-25")
    assert "\n" not in error


def test_own_logs_without_files_are_one_clear_line(own_home: Path) -> None:
    config = preset(DAY, "smoke", "openbandit")
    own = dataclasses.replace(config, source=dataclasses.replace(config.source, name="mine"))
    with pytest.raises(DataError, match=r"no impressions of 2026-11-29: .*matches no file"):
        daily.check_source(own)


def test_a_published_set_without_its_files_is_one_clear_line(
    own_home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for files in ([], ["--files", str(tmp_path)]):
        assert main(["daily", "--source", "taobaoad", *files]) == 65
        (line,) = capsys.readouterr().err.strip().splitlines()
        assert "tianchi.aliyun.com/dataset/56" in line
        assert "raw_sample.csv is missing" in line or "set FILES" in line


def test_a_published_set_has_a_day_of_its_own_and_its_folder_travels_as_an_override(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert daily.default_day("kuairand") == "2022-05-08"
    monkeypatch.chdir(tmp_path)
    arguments = request_parser("x").parse_args(
        ["--day", "2022-05-08", "--source", "kuairand", "--files", "mine"]
    )
    assert config_of(arguments).source.files == str(tmp_path / "mine")
    assert trigger_form(arguments)["overrides"] == {"source.files": str(tmp_path / "mine")}


def test_a_full_disk_is_one_clear_line(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=0.2e9))
    with pytest.raises(RetryError, match=r"0\.2 GB left, a small run needs 2"):
        daily.check_disk("small")


def test_a_finished_day_starts_nothing(
    own_home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(**_: object) -> None:
        raise AssertionError("a server was started")

    monkeypatch.setattr(servers, "up", refuse)
    finished_run(own_home)
    assert main(["daily", "--day", DAY, "--size", "smoke"]) == 0
    out = capsys.readouterr().out
    assert f"{DAY} is done" in out
    assert "report.html" in out


def test_two_dailies_do_not_mix(own_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from pipeline.run.environment import state_folder
    from pipeline.run.lock import locked

    with locked(state_folder() / "daily.lock"):
        assert main(["daily", "--day", DAY, "--size", "smoke"]) == 75
    assert "is held by process" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("source", "absolute"), [("planted", "planted"), ("shop.toml", str(Path.cwd() / "shop.toml"))]
)
def test_the_trigger_form_fits_the_dag(source: str, absolute: str) -> None:
    form = trigger_form(
        argparse.Namespace(
            day=DAY,
            size="small",
            source=source,
            surfaces="feed, reels",
            no_warm_start=True,
            promote="auto",
            overrides='{"mix.alpha": 0.5}',
        )
    )
    assert form["source"] == absolute
    assert form["surfaces"] == ["feed", "reels"]
    assert form["warm_start"] is False
    assert form["overrides"] == {"mix.alpha": 0.5}


def test_the_summary_takes_what_is_there(own_home: Path) -> None:
    run = open_run(finished_run(own_home))
    assert "all stages" in summary(run, {})
    rows = [{"surface": "feed", "objective": "click", "ne": [0.91234, 0.9, 0.95], "rows": 3}]
    (run.output("evaluate") / "metrics.json").write_text(json.dumps({"rows": rows}))
    students = [{"surface": "feed", "objective": "click", "arm": "kd", "gain": None, "tr": None}]
    (run.output("evaluate_students") / "table.json").write_text(json.dumps({"rows": students}))
    asked = {"covered": 0.5, "exact": 0.3, "user": 0.2, "none": 0.5, "count": 10}
    (run.output("replay") / "coverage.json").write_text(json.dumps({"asked": asked}))
    (run.output("promote") / "decision.json").write_text(
        json.dumps({"decision": "kept", "reasons": ["better_than_champion: worse by 2%"]})
    )
    text = summary(run, {"foundation_daily.mix": 2.0})
    for part in (
        "promotion: kept\n  better_than_champion: worse by 2%",
        "0.9123 [0.9000, 0.9500]",
        "kd   -     -",
        "coverage: 50.0% of 10 asked pairs (exact 30.0%, user 20.0%, none 50.0%)",
        "mix 2.0",
    ):
        assert part in text


def test_a_failing_task_shows_the_lines_of_its_stage() -> None:
    content = [
        {"event": "::group::Pre Execute", "logger": "task"},
        {"event": "DataError: no rows", "logger": "airflow.task.operators.x.StageOperator"},
        {"event": "Task failed", "level": "error", "error_detail": [{"exc_value": "land ended"}]},
        "plain",
    ]
    assert stage_lines(content) == ("DataError: no rows", "land ended")


class RecordedApi:
    """Airflow's answers, written down, and what it was asked to change."""

    def __init__(self, runs: list[dict[str, object]]) -> None:
        self.runs, self.changes = runs, list[tuple[str, object]]()

    def get_patiently(self, path: str, **query: object) -> dict[str, object]:
        mine = path.split("/")[2]
        return {"dag_runs": [r for r in self.runs if r["dag_id"] == mine]}

    def post(self, path: str, body: object) -> dict[str, object]:
        self.changes.append((path, body))
        return {"dag_run_id": "new"}

    def patch(self, path: str, body: object) -> dict[str, object]:
        self.changes.append((path, body))
        return {}


def dag_run(name: str, kind: str, conf: object = None, dag: str = "foundation_daily") -> dict:
    return {"dag_id": dag, "dag_run_id": name, "run_type": kind, "conf": conf, "state": "running"}


def test_a_run_under_way_is_followed_not_started_again() -> None:
    form = {"day": DAY, "size": "smoke"}
    api = RecordedApi([dag_run("other", "manual", {"day": DAY}), dag_run("same", "manual", form)])
    assert trigger(api, form) == "same"  # type: ignore[arg-type]
    assert api.changes == []


def test_a_new_run_carries_the_day_as_its_partition() -> None:
    api = RecordedApi([])
    assert trigger(api, {"day": DAY}) == "new"  # type: ignore[arg-type]
    ((path, body),) = api.changes
    assert path == "/dags/foundation_daily/dagRuns"
    assert isinstance(body, dict)
    assert body.pop("dag_run_id").startswith("manual__")
    assert body == {"logical_date": None, "partition_key": DAY, "conf": {"day": DAY}}


class BusyApi(RecordedApi):
    """Fails at the first call although the run arrives, then knows the id."""

    def post(self, path: str, body: object) -> dict[str, object]:
        super().post(path, body)
        if len(self.changes) == 1:
            raise RetryError("Airflow failed at POST: 500 Database error")
        raise ConfigError("Airflow refused POST: 409 it exists")


def test_a_busy_database_does_not_start_a_day_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.run.trigger.PAUSES_S", (0.0,))
    api = BusyApi([])
    started = trigger(api, {"day": DAY})  # type: ignore[arg-type]
    assert [body["dag_run_id"] for _, body in api.changes] == [started, started]  # type: ignore[index]


def test_lost_runs_are_given_up_but_not_the_schedules_own() -> None:
    api = RecordedApi(
        [
            dag_run("a b", "manual"),
            dag_run("c", "scheduled"),
            dag_run("d", "backfill"),
            dag_run("e", "asset_triggered", dag="students_daily"),
        ]
    )
    abandon_lost(api)  # type: ignore[arg-type]
    assert [path for path, _ in api.changes] == [
        "/dags/foundation_daily/dagRuns/a%20b",
        "/dags/students_daily/dagRuns/e",
    ]


def test_the_disk_of_a_home_that_does_not_exist_yet_is_its_parents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADWATER_HOME", str(tmp_path / "not" / "there"))
    daily.check_disk("smoke")
    assert not (tmp_path / "not").exists()
