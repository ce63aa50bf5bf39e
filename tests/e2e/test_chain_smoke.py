"""The whole chain at smoke size: each DAG by itself, then the real scheduler, then a failing day.

The tests depend on the ones before them, as the days do.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.run.errors import DataError
from pipeline.run.manifest import need_manifest
from pipeline.run.paths import open_run
from pipeline.run.runs import CHAIN, newest_run, unfinished, units_of

Command = Callable[..., "subprocess.CompletedProcess[str]"]
pytestmark = pytest.mark.timeout(1800)  # a whole day of tasks, beside other tests
FIRST, SECOND = "2026-11-26", "2026-11-27"


def no_process_of(home: Path) -> bool:
    """No living process has the home in its environment."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                variables = (entry / "environ").read_bytes()
            except OSError:
                continue
            if f"HEADWATER_HOME={home}\0".encode() in variables:
                return False
    return True


def test_airflow_makes_its_database(command: Command) -> None:
    done = command("airflow", "db", "migrate")
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("dag", CHAIN)
def test_each_dag_by_itself(command: Command, shared_home: Path, dag: str) -> None:
    form = {"day": FIRST} | ({"size": "smoke"} if dag == "foundation_daily" else {})
    done = command("airflow", "dags", "test", dag, "-c", json.dumps(form))
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    run = open_run(newest_run(FIRST, shared_home))
    missing = {name.split("/")[0] for name in unfinished(run)}
    assert not missing & (set(CHAIN[dag]) - {"track"})


def fingerprints(home: Path, day: str) -> dict[str, str]:
    """Fingerprint of each output of the day's run."""
    run = open_run(newest_run(day, home))
    stages = dict.fromkeys(stage for dag in CHAIN.values() for stage in dag)
    return {
        f"{stage}/{unit}": need_manifest(run.output(stage, unit)).fingerprint
        for stage in stages
        for unit in units_of(run, stage)
        if (run.output(stage, unit) / "manifest.json").is_file()
    }


def test_the_scheduler_runs_the_chain_and_recomputes_nothing(
    command: Command, shared_home: Path
) -> None:
    before = fingerprints(shared_home, FIRST)
    done = command("pipeline", "daily", "--day", FIRST, "--size", "smoke", "--rerun")
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    after = fingerprints(shared_home, FIRST)
    # MLflow and so `track` come only with the servers
    assert {k: v for k, v in after.items() if k != "track/"} == {
        k: v for k, v in before.items() if k != "track/"
    }
    for part in ("promotion:", "normalized entropy", "transfer", "coverage:", "report.html"):
        assert part in done.stdout
    assert no_process_of(shared_home)


def test_the_same_day_again_is_a_no_op(command: Command) -> None:
    done = command("pipeline", "daily", "--day", FIRST, "--size", "smoke")
    assert done.returncode == 0
    assert f"{FIRST} is done" in done.stdout
    assert "started" not in done.stderr


def test_a_failing_task_ends_the_day_with_its_last_lines(
    command: Command, shared_home: Path
) -> None:
    broken = json.dumps({"mix.budget": 1e-6})
    done = command("pipeline", "daily", "--day", FIRST, "--size", "smoke", "--overrides", broken)
    assert done.returncode == 1, done.stdout[-3000:] + done.stderr[-3000:]
    assert "FAILED foundation_daily.mix" in done.stderr
    assert "ConfigError: mix.budget" in done.stderr
    assert no_process_of(shared_home)


@pytest.mark.long
def test_the_next_day_starts_from_the_champion(command: Command, shared_home: Path) -> None:
    done = command("pipeline", "daily", "--day", SECOND, "--size", "smoke")
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    run = open_run(newest_run(SECOND, shared_home))
    assert unfinished(run) == []
    if run.config.parent is not None:  # else the first day's model passed no gate
        assert run.config.parent.day == FIRST
    assert no_process_of(shared_home)


@pytest.mark.long
def test_a_backfill_of_two_days_runs_the_chain(command: Command, shared_home: Path) -> None:
    days = ("2026-11-20", "2026-11-21")
    smoke = {"HEADWATER_SIZE": "smoke"}
    up = command("pipeline", "servers", "up", "--schedule", **smoke)
    assert up.returncode == 0, up.stderr[-3000:]
    try:
        span = ("--from-date", days[0], "--to-date", days[1])
        made = command("airflow", "backfill", "create", "--dag-id", "foundation_daily", *span)
        assert made.returncode == 0, made.stderr[-3000:]
        wait_for(days, shared_home, 3000)
    finally:
        command("pipeline", "servers", "down")


@pytest.mark.long
def test_solaris_alone_for_a_range_of_days(command: Command, shared_home: Path) -> None:
    """Two days of one trigger: what was deleted comes back with the same bytes."""
    days = ("2026-11-20", "2026-11-21")
    before = {day: fingerprints(shared_home, day) for day in days}
    for day in days:
        shutil.rmtree(open_run(newest_run(day, shared_home)).output("replay"))
    up = command("pipeline", "servers", "up", "--schedule")
    assert up.returncode == 0, up.stderr[-3000:]
    try:
        form = json.dumps({"day": days[0], "until": days[1]})
        made = command("airflow", "dags", "trigger", "solaris_backfill", "--conf", form)
        assert made.returncode == 0, made.stderr[-3000:]
        wait_for(days, shared_home, 1200)
    finally:
        command("pipeline", "servers", "down")
    after = {day: fingerprints(shared_home, day) for day in days}
    for day in days:
        solaris = [k for k in before[day] if k.split("/")[0] in CHAIN["solaris_backfill"]]
        assert {k: before[day][k] for k in solaris if k != "track/"} == {
            k: after[day].get(k) for k in solaris if k != "track/"
        }


def wait_for(days: tuple[str, ...], home: Path, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not all(finished(day, home) for day in days):
        assert time.monotonic() < deadline, f"{days} did not finish"
        time.sleep(5)


def finished(day: str, home: Path) -> bool:
    try:
        return unfinished(open_run(newest_run(day, home))) == []
    except DataError:
        return False
