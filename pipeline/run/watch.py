"""Follow one day through the three DAGs over the REST API, to its end or the first failure."""

from __future__ import annotations

import datetime as dt
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.run.airflow_api import AirflowApi, quoted
from pipeline.run.errors import RetryError
from pipeline.run.paths import home
from pipeline.run.runs import CHAIN

log = logging.getLogger(__name__)
POLL_S = 3.0
NEXT_DAG_S = 120.0  # a consumer starts seconds after the last asset that it waits for
ENDED = ("success", "failed", "skipped", "upstream_failed", "removed")
Task = dict[str, Any]
Key = tuple[str, str, int]


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A failed task and the last lines of its log."""

    dag: str
    task: str
    lines: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How the chain ended: seconds per task in order of start, and what failed."""

    seconds: dict[str, float]
    failures: tuple[Failure, ...]


class Watcher:
    """Follows the DAG runs of one run folder; `show` gets one line per task that ended.

    `status` gets, at each look, a text of what runs now.
    """

    def __init__(
        self,
        api: AirflowApi,
        folder: Path,
        show: Callable[[str], None],
        status: Callable[..., None],
    ) -> None:
        self._api, self._show, self._status = api, show, status
        self._run = str(folder.relative_to(home() / "runs"))
        self._day = folder.parent.name
        self._dag_runs: dict[str, str] = {}  # dag -> run id
        self._shown: set[tuple[Key, int, str]] = set()
        self._tasks: dict[Key, Task] = {}

    def follow(self, dag_run_id: str) -> Outcome:
        """Watch from this run of foundation_daily to the end of the chain.

        `RetryError` when a DAG that the others should start does not start.
        """
        first, *rest = CHAIN
        self._dag_runs[first] = dag_run_id
        since, quiet_since = self._dag_run(first)["queued_at"], time.monotonic()
        while True:
            states = {dag: self._dag_run(dag)["state"] for dag in self._dag_runs}
            for dag in self._dag_runs:
                self._look(dag)
            if "failed" in states.values():
                return self._outcome()
            waiting = [dag for dag in rest if dag not in self._dag_runs]
            if not waiting and set(states.values()) == {"success"}:
                return self._outcome()
            for dag in waiting:
                self._find(dag, since)
            if set(states.values()) != {"success"} or len(self._dag_runs) > len(states):
                quiet_since = time.monotonic()
            elif time.monotonic() - quiet_since > NEXT_DAG_S:
                raise RetryError(
                    f"{', '.join(waiting)} did not start {NEXT_DAG_S:.0f} s after the DAGs before; "
                    "is it paused? see the Airflow UI"
                )
            self._status(self._running())
            time.sleep(POLL_S)

    def _dag_run(self, dag: str) -> dict[str, Any]:
        return self._api.get_patiently(f"/dags/{dag}/dagRuns/{quoted(self._dag_runs[dag])}")

    def _find(self, dag: str, since: str) -> None:
        """Look for the run of a downstream DAG that our own asset events started."""
        query = {"run_after_gte": since, "order_by": "-run_after", "limit": 20}
        for run in self._api.get_patiently(f"/dags/{dag}/dagRuns", **query)["dag_runs"]:
            path = f"/dags/{dag}/dagRuns/{quoted(run['dag_run_id'])}/upstreamAssetEvents"
            if run["partition_key"] != self._day:
                continue
            try:
                events = self._api.get(path)["asset_events"]
            except RetryError:
                return  # Airflow 3.3 answers 500 while a run that shares the event is queued
            if any((e["extra"] or {}).get("run") == self._run for e in events):
                self._dag_runs[dag] = run["dag_run_id"]
                return

    def _look(self, dag: str) -> None:
        path = f"/dags/{dag}/dagRuns/{quoted(self._dag_runs[dag])}/taskInstances"
        found = self._api.get_patiently(path, limit=100, order_by="start_date")["task_instances"]
        for task in found:
            key = (dag, task["task_id"], task["map_index"])
            self._tasks[key] = task
            mark = (key, task["try_number"], str(task["state"]))
            if mark not in self._shown and task["state"] in (*ENDED[:3], "up_for_retry"):
                self._shown.add(mark)
                self._show(f"{dag:17} {_name(task):34} {task['state']:12} {_seconds(task):6.1f} s")

    def _running(self) -> str:
        names = [
            f"{_name(task)} {_seconds(task):.0f} s"
            for task in self._tasks.values()
            if task["state"] == "running"
        ]
        ended = sum(1 for task in self._tasks.values() if task["state"] in ENDED)
        return f"{ended}/{len(self._tasks)} tasks, now: {', '.join(names) or 'waiting'}"

    def _outcome(self) -> Outcome:
        done = [(key, t) for key, t in self._tasks.items() if t["state"] in ("success", "failed")]
        done.sort(key=lambda item: str(item[1]["start_date"]))
        return Outcome(
            seconds={f"{key[0]}.{_name(task)}": _seconds(task) for key, task in done},
            failures=tuple(
                Failure(dag=key[0], task=_name(task), lines=self._last_lines(key, task))
                for key, task in self._tasks.items()
                if task["state"] == "failed"
            ),
        )

    def _last_lines(self, key: Key, task: Task, count: int = 15) -> tuple[str, ...]:
        dag, name, index = key
        path = (
            f"/dags/{dag}/dagRuns/{quoted(self._dag_runs[dag])}/taskInstances/{name}"
            f"/logs/{task['try_number']}"
        )
        try:
            content = self._api.get(path, map_index=index)["content"]
        except RetryError as error:
            return (f"no log: {error}",)
        return stage_lines(content)[-count:]


def stage_lines(content: list[Any]) -> tuple[str, ...]:
    """What the stage itself wrote in a task log, then the error; without Airflow's own lines."""
    lines: list[str] = []
    for entry in content:
        if not isinstance(entry, dict):
            continue
        text = str(entry.get("event", ""))
        if str(entry.get("logger", "")).endswith(("StageOperator", "task.stdout")):
            lines.append(text)
        elif entry.get("level") in ("error", "critical"):
            details = entry.get("error_detail") or [{}]
            lines.append(str(details[0].get("exc_value") or text))
    return tuple(lines)


def _name(task: Task) -> str:
    unit = task.get("rendered_map_index") or (task["map_index"] if task["map_index"] >= 0 else "")
    return f"{task['task_id']}[{unit}]" if unit != "" else task["task_id"]


def _seconds(task: Task) -> float:
    if task["duration"] is not None:
        return float(task["duration"])
    if not task["start_date"]:
        return 0.0

    began = dt.datetime.fromisoformat(task["start_date"])
    return (dt.datetime.now(dt.UTC) - began).total_seconds()
