"""The DAG files: what they load, how long that takes, and what they contain."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.run.runs import CHAIN, SCALING_LAW
from pipeline.run.servers import pools

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("torch", "polars", "pyarrow", "mlflow", "numpy", "deepspeed", "great_expectations")
PROBE = """
import sys, time, json
import airflow.sdk, airflow.sdk.execution_time.task_runner
began = time.process_time()
import importlib
module = importlib.import_module(sys.argv[1])
seconds = time.process_time() - began
print(json.dumps([seconds, [m for m in sys.argv[2:] if m in sys.modules]]))
"""
DAGS = {**CHAIN, "scaling_law": SCALING_LAW}
LIGHT_TASKS = {
    "scaling_law": {
        "resolve",
        "ingest_units",
        "timelines_units",
        "scaling_tune_units",
        "scaling_point_units",
    },
    "foundation_daily": {"resolve", "ingest_units", "timelines_units"},
    "solaris_backfill": {"find_run", "precompute_units", "later_days", "start_day"},
    "students_daily": {"find_run", "transfer_units"},
}


def load(name: str) -> Any:
    return importlib.import_module(f"dags.{name}").dag


@pytest.mark.parametrize("name", DAGS)
def test_import_is_quick_and_loads_nothing_heavy(name: str) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", PROBE, f"dags.{name}", *HEAVY]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True, cwd=ROOT
    )
    seconds, loaded = json.loads(done.stdout.splitlines()[-1])
    assert loaded == []
    assert seconds < 1.0


def test_airflow_finds_exactly_these_files() -> None:
    from airflow.utils.file import list_py_file_paths

    found = {Path(p).relative_to(ROOT) for p in list_py_file_paths(ROOT)}
    assert found == {Path("dags") / f"{name}.py" for name in DAGS}


@pytest.mark.parametrize("name", DAGS)
def test_a_dag_has_the_stages_of_the_chain_in_order(name: str) -> None:
    dag = load(name)
    order = [t.task_id for t in dag.topological_sort()]
    assert set(order) == {*DAGS[name], *LIGHT_TASKS[name]}
    places = [order.index(stage) for stage in DAGS[name]]
    # labels and timelines do not wait for each other: their order is free
    free = {order.index(s) for s in ("labels", "timelines") if s in order}
    kept = [p for p in places if p not in free]
    assert kept == sorted(kept)


def test_labels_and_timelines_are_independent() -> None:
    dag = load("foundation_daily")
    upstream = dag.get_task("labels").get_flat_relative_ids(upstream=True)
    assert "timelines" not in upstream
    assert "ingest" in upstream
    assert dag.get_task("mix").upstream_task_ids >= {"labels", "timelines"}
    trained_after = dag.get_task("pretrain").get_flat_relative_ids(upstream=True)
    assert trained_after >= {"contracts", "mixture_contract", "mix"}


@pytest.mark.parametrize("name", DAGS)
def test_every_task_has_an_existing_pool_retries_and_a_timeout(name: str) -> None:
    for task in load(name).tasks:
        assert task.pool in pools(), task.task_id
        assert task.pool_slots <= pools()[task.pool]["slots"], task.task_id
        assert task.execution_timeout is not None
        assert task.task_id in ("resolve", "find_run") or task.retries > 0


@pytest.mark.parametrize("name", DAGS)
def test_a_dag_explains_itself(name: str) -> None:
    dag = load(name)
    for word in ("Inputs", "Outputs", "Rerun", "Backfill"):
        assert f"**{word}**" in dag.doc_md
    assert dag.max_active_runs == 1
    assert dag.catchup is False


def test_the_form_has_seven_described_fields() -> None:
    params = load("foundation_daily").params
    assert list(params) == [
        "day",
        "size",
        "source",
        "surfaces",
        "warm_start",
        "promote",
        "overrides",
    ]
    for name in params:
        schema = params.get_param(name)
        assert schema.description
        assert schema.schema["section"] in ("What", "How")
    assert params.get_param("day").schema["format"] == "date"
    assert params.get_param("size").schema["enum"] == ["smoke", "small", "base"]


@pytest.mark.parametrize(
    ("name", "task", "asset"),
    [
        ("foundation_daily", "mixture_contract", "mixed_day"),
        ("foundation_daily", "promote", "foundation_model"),
        ("solaris_backfill", "representation_contract", "representations"),
        ("solaris_backfill", "replay", "solaris_store"),
        ("students_daily", "promote_students", "students"),
    ],
)
def test_assets_are_published_by(name: str, task: str, asset: str) -> None:
    assert [o.name for o in load(name).get_task(task).outlets] == [asset]


def test_a_ladder_is_started_by_hand_with_four_fields() -> None:
    from dags._stages import resolve_command

    dag = load("scaling_law")
    assert dag.schedule is None
    params = dag.params.dump()
    assert list(params) == ["day", "size", "source", "overrides"]
    command = resolve_command(params, "2026-11-29")
    assert command[command.index("--source") + 1] == "scaling"
    assert "--promote" not in command


def test_a_ladder_without_trials_is_trained_all_the_same() -> None:
    dag = load("scaling_law")
    train = dag.get_task("scaling_point")
    assert train.trigger_rule == "none_failed"
    assert "scaling_tune" in train.upstream_task_ids
    assert dag.get_task("scaling_fit").upstream_task_ids == {"scaling_point", "resolve"}


def test_the_schedule_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.sdk import CronPartitionTimetable, PartitionedAtRuntime

    from dags._assets import daily_schedule

    monkeypatch.setenv("HEADWATER_SCHEDULE", "off")
    assert isinstance(daily_schedule(), PartitionedAtRuntime)
    monkeypatch.delenv("HEADWATER_SCHEDULE")
    assert isinstance(daily_schedule(), CronPartitionTimetable)


@pytest.mark.parametrize("code", [1, 2, 64, 65])
def test_errors_are_not_retried(code: int) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    from dags._stages import check_exit

    with pytest.raises(AirflowFailException, match="nothing there"):
        check_exit("land", code, "DataError: nothing there")


@pytest.mark.parametrize("code", [75, -9, 137])
def test_temporary_trouble_and_killed_processes_are_retried(code: int) -> None:
    from airflow.sdk.exceptions import AirflowException, AirflowFailException

    from dags._stages import check_exit

    with pytest.raises(AirflowException, match="disk full") as raised:
        check_exit("land", code, "RetryError: disk full")
    assert not isinstance(raised.value, AirflowFailException)


def test_the_form_becomes_the_resolve_command() -> None:
    from dags._stages import resolve_command

    params = load("foundation_daily").params.dump()
    params |= {"surfaces": ["feed", "reels"], "warm_start": False, "overrides": {"mix.alpha": 0.5}}
    command = resolve_command(params, "2026-11-29")
    assert command[1:5] == ["-m", "pipeline", "resolve", "--day"]
    assert command[command.index("--surfaces") + 1] == "feed,reels"
    assert json.loads(command[command.index("--overrides") + 1]) == {"mix.alpha": 0.5}
    assert command[-1] == "--no-warm-start"


class OutletEvent:
    """What Airflow gives a task to describe an asset event with."""

    def __init__(self) -> None:
        self.extra: dict[str, str] = {}
        self.partitions: list[str] = []

    def add_partitions(self, key: str) -> None:
        self.partitions.append(key)


@pytest.mark.parametrize(
    ("key", "partitions"), [(None, ["2026-11-29"]), ("2026-11-29", [])], ids=["by hand", "keyed"]
)
def test_an_event_names_day_run_and_partition(
    own_home: Path, key: str | None, partitions: list[str]
) -> None:
    from dags._stages import _publish

    event = OutletEvent()
    context: Any = {
        "outlet_events": {"asset": event},
        "dag_run": SimpleNamespace(partition_key=key),
    }
    _publish(["asset"], str(own_home / "runs/2026-11-29/r"), context)
    assert event.extra == {"day": "2026-11-29", "run": "2026-11-29/r"}
    assert event.partitions == partitions


def test_a_stage_that_finds_no_run_fails_for_good(own_home: Path) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    from dags._stages import StageOperator

    task = StageOperator(task_id="labels", stage="labels", run_folder=str(own_home / "runs/x/y"))
    with pytest.raises(AirflowFailException, match="is not a run folder"):
        task.execute({})  # type: ignore[arg-type]


def test_a_range_starts_each_later_day_once() -> None:
    from airflow.sdk.exceptions import DagRunTriggerException

    dag = load("solaris_backfill")
    assert list(dag.params) == ["day", "until"]
    assert dag.get_task("start_day").upstream_task_ids == {"later_days"}
    assert not dag.get_task("start_day").downstream_task_ids

    from dags._ranges import DayTrigger

    task = DayTrigger(task_id="another", day="2026-11-30", dag=dag)
    with pytest.raises(DagRunTriggerException) as raised:
        task.execute({"dag_run": SimpleNamespace(run_id="manual__1")})  # type: ignore[typeddict-item]
    asked = raised.value
    assert (asked.trigger_dag_id, asked.conf) == ("solaris_backfill", {"day": "2026-11-30"})
    assert asked.dag_run_id == "2026-11-30__of__manual__1"
    assert asked.skip_when_already_exists
    assert not asked.wait_for_completion
