"""Start a day in Airflow, or take up the run of it that is already under way."""

from __future__ import annotations

import argparse
import datetime as dt
import json
import logging
import time
from pathlib import Path
from typing import Any

from pipeline.run.airflow_api import AirflowApi, quoted
from pipeline.run.errors import ConfigError, RetryError
from pipeline.run.runs import CHAIN

log = logging.getLogger(__name__)
FIRST = "foundation_daily"
ACTIVE = ("queued", "running")
PAUSES_S = (2.0, 5.0, 10.0, 20.0)


def trigger(api: AirflowApi, form: dict[str, Any]) -> str:
    """The id of a run of foundation_daily with this form: an active one, else a new one."""
    for run in active_runs(api, FIRST):
        if run["conf"] == form:
            log.info("following %s, which is %s already", run["dag_run_id"], run["state"])
            return run["dag_run_id"]
    now = dt.datetime.now(dt.UTC).isoformat()
    body = {"logical_date": None, "partition_key": form["day"], "conf": form}
    return _start(api, body | {"dag_run_id": f"manual__{now}"})


def _start(api: AirflowApi, body: dict[str, Any]) -> str:
    """Post a run; again, under the same id, when Airflow's database was too busy to take it."""
    pauses = list(PAUSES_S)
    while True:
        try:
            return api.post(f"/dags/{FIRST}/dagRuns", body)["dag_run_id"]
        except RetryError as error:
            if not pauses:
                raise
            log.info("trying again: %s", error)
            time.sleep(pauses.pop(0))
        except ConfigError as error:
            if ": 409 " in str(error):  # an earlier try did arrive
                return body["dag_run_id"]
            raise


def abandon_lost(api: AirflowApi) -> None:
    """Fail runs whose tasks ended with an earlier scheduler; call it before any other trigger.

    Airflow notices lost tasks only after minutes, and a new run would wait for them. What
    the schedule or a backfill started is left to Airflow.
    """
    for dag in CHAIN:
        for run in active_runs(api, dag):
            if run["run_type"] in ("manual", "asset_triggered"):
                log.info("giving up %s of %s: its servers are gone", run["dag_run_id"], dag)
                path = f"/dags/{dag}/dagRuns/{quoted(run['dag_run_id'])}"
                api.patch(path, {"state": "failed"})


def active_runs(api: AirflowApi, dag: str) -> list[dict[str, Any]]:
    """Runs of a DAG that are queued or running."""
    return api.get_patiently(f"/dags/{dag}/dagRuns", state=ACTIVE, limit=100)["dag_runs"]


def trigger_form(arguments: argparse.Namespace) -> dict[str, Any]:
    """Command-line arguments as the trigger form of foundation_daily."""
    return {
        "day": arguments.day,
        "size": arguments.size,
        "source": _source(arguments.source),
        "surfaces": [s.strip() for s in arguments.surfaces.split(",") if s.strip()],
        "warm_start": not arguments.no_warm_start,
        "promote": arguments.promote,
        "overrides": json.loads(arguments.overrides or "{}"),
    }


def _source(text: str) -> str:
    """A file's path made absolute: tasks run in another folder."""
    return str(Path(text).resolve()) if text.endswith(".toml") else text
