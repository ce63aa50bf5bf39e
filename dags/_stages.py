"""The one task factory: a task is `python -m pipeline <stage> --run DIR [--unit U]` in a process.

Torch in a forked task breaks CUDA and keeps memory, and a command that Airflow runs can be run
by hand. XCom carries the run folder and short lists of units, nothing else.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from datetime import timedelta
from subprocess import Popen
from typing import Any

from airflow.sdk import Asset, BaseOperator, Context, Param, get_current_context, task
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from dags._days import relative_to_runs, resolve_day, resolve_run
from pipeline.run.errors import EXIT_OK, EXIT_RETRY, ConfigError, DataError
from pipeline.run.launch import kill_group, pipeline_command, started, stream
from pipeline.run.presets import SIZES
from pipeline.run.resolve import PROMOTE
from pipeline.run.runs import units

# stage -> pool (deploy/pools.json); stages that are not named are light
POOLS = {
    **dict.fromkeys(("pretrain", "evaluate", "represent", "precompute", "transfer"), "gpu"),
    **dict.fromkeys(("scaling_tune", "scaling_point"), "gpu"),
    **dict.fromkeys(("land", "ingest", "contracts", "labels", "timelines", "mix"), "io"),
    **dict.fromkeys(("mixture_contract", "representation_contract"), "io"),
    **dict.fromkeys(("predict", "replay", "as_served"), "io"),
}
LIGHT = "light"
# stages that use all threads take the whole gpu pool; one of many shards or surfaces takes half
SLOTS = dict.fromkeys(("pretrain", "evaluate", "represent"), 2)
TIMEOUTS = {
    **dict.fromkeys(("pretrain", "scaling_tune", "scaling_point"), timedelta(hours=24)),
    "transfer": timedelta(hours=12),
}
TIMEOUT = timedelta(hours=4)
RETRIES: dict[str, Any] = {
    "retries": 2,
    "retry_delay": timedelta(seconds=10),
    "retry_exponential_backoff": 2.0,
    "max_retry_delay": timedelta(minutes=10),
}


class StageOperator(BaseOperator):
    """Runs one stage of one run, for one unit when the stage has units; publishes `outlets`."""

    template_fields: Sequence[str] = ("run_folder", "unit")

    def __init__(self, *, stage: str, run_folder: str, unit: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.stage, self.run_folder, self.unit = stage, run_folder, unit
        self._process: Popen[str] | None = None

    def execute(self, context: Context) -> None:
        """Run the stage to its end; its exit code decides whether Airflow tries again."""
        unit = ["--unit", self.unit] if self.unit else []
        self._run(pipeline_command(self.stage, "--run", self.run_folder, *unit))
        _publish(self.outlets, self.run_folder, context)

    def on_kill(self) -> None:
        """End the stage and its children when Airflow ends the task."""
        if self._process:
            kill_group(self._process)

    def _run(self, command: list[str]) -> str:
        with started(command) as self._process:
            code, last = stream(self._process, self.log.info)
        check_exit(f"{self.stage} {self.unit}".strip(), code, last)
        return last


def stage(
    name: str,
    *,
    outlets: Sequence[Asset] = (),
    mapped: bool = False,
    trigger_rule: str = "all_success",
) -> Any:
    """The task of a stage: call it with the run folder, or `.expand(unit=...)` when mapped."""
    settings: dict[str, Any] = {
        "task_id": name,
        "stage": name,
        "pool": POOLS.get(name, LIGHT),
        "pool_slots": SLOTS.get(name, 1),
        "execution_timeout": TIMEOUTS.get(name, TIMEOUT),
        "trigger_rule": trigger_rule,
        "doc_md": f"`python -m pipeline {name} --run DIR{' --unit U' if mapped else ''}`",
        **RETRIES,
    }
    if mapped:
        settings["map_index_template"] = "{{ task.unit }}"
    if outlets:
        settings["outlets"] = list(outlets)

    def build(run_folder: Any, unit: Any = None) -> Any:
        if mapped:
            return StageOperator.partial(run_folder=run_folder, **settings).expand(unit=unit)
        return StageOperator(run_folder=run_folder, **settings)

    return build


@task(pool=LIGHT, retries=0, execution_timeout=timedelta(minutes=5), task_id="resolve")
def resolve() -> str:
    """Check the request, freeze it into a run folder and hand on the folder."""
    context = get_current_context()
    try:
        command = resolve_command(context["params"], resolve_day(context["params"], context))
    except ConfigError as error:
        raise AirflowFailException(f"ConfigError: {error}") from None
    with started(command) as process:
        code, last = stream(process, print)
    check_exit("resolve", code, last)
    return last


@task(pool=LIGHT, retries=0, execution_timeout=timedelta(minutes=5), task_id="find_run")
def find_run() -> str:
    """The run folder of the day: the triggering event's, else the newest of the day."""
    context = get_current_context()
    try:
        return resolve_run(context["params"], context)
    except (ConfigError, DataError) as error:
        raise AirflowFailException(f"{type(error).__name__}: {error}") from None


def list_units(name: str, run_folder: Any) -> Any:
    """A task that lists the units which the stage `name` is mapped over."""

    @task(task_id=f"{name}_units", pool=LIGHT, execution_timeout=timedelta(minutes=5), **RETRIES)
    def list_them(folder: str) -> list[str]:
        return units(folder, name)

    return list_them(run_folder)


def resolve_command(params: Mapping[str, Any], day: str) -> list[str]:
    """The resolve command of a trigger form."""
    command = pipeline_command("resolve", "--day", day)
    for name in ("size", "source", "promote"):
        command += [f"--{name}", str(params[name])] if name in params else []
    command += ["--surfaces", ",".join(params.get("surfaces") or [])]
    command += ["--overrides", json.dumps(params["overrides"] or {})]
    return command if params.get("warm_start", True) else [*command, "--no-warm-start"]


def check_exit(what: str, code: int, last: str) -> None:
    """Raise for an exit code: temporary trouble and killed processes are retried, errors are not.

    A bug or bad data do not go away by trying again; memory and disks do get free.
    """
    if code == EXIT_OK:
        return
    message = f"{what} ended with exit code {code}: {last}"
    if code == EXIT_RETRY or code < 0 or code > 128:
        raise AirflowException(message)
    raise AirflowFailException(message)


def _publish(outlets: Sequence[Any], folder: str, context: Context) -> None:
    """Name day and run in the outlet events; a run without partition key names the partition."""
    run = relative_to_runs(folder)
    day = run.split("/")[0]
    for asset in outlets:
        event = context["outlet_events"][asset]
        event.extra = {"day": day, "run": run}
        if context["dag_run"].partition_key is None:  # type: ignore[union-attr]
            event.add_partitions(day)


def day_param() -> Param:
    """The day field of every form."""
    return date_param("Day (UTC)", "Empty: the partition's day; a run started by hand needs it.")


def date_param(title: str, description: str) -> Param:
    """A date that may be left empty."""
    return Param(
        None,
        type=["null", "string"],
        format="date",
        title=title,
        description=description,
        section="What",
    )


def ladder_params() -> dict[str, Param]:
    """The trigger form of scaling_law: the fields of `request_params` that a ladder has."""
    form = request_params()
    source = Param(
        "scaling",
        type="string",
        minLength=1,
        description="scaling: planted logs made for it. A .toml file's full path for others.",
        section="What",
    )
    return {"day": form["day"], "size": form["size"], "source": source} | {
        "overrides": form["overrides"]
    }


def request_params() -> dict[str, Param]:
    """The trigger form of foundation_daily; HEADWATER_SOURCE and HEADWATER_SIZE set defaults."""
    return {
        "day": day_param(),
        "size": Param(
            os.environ.get("HEADWATER_SIZE", "small"),
            enum=list(SIZES),
            description="The one dial: data of a planted run, widths and batches.",
            section="What",
        ),
        "source": Param(
            os.environ.get("HEADWATER_SOURCE", "planted"),
            type="string",
            minLength=1,
            description="A name (docs/sources.md), planted, or the full path of a .toml file.",
            section="What",
        ),
        "surfaces": Param(
            [],
            type="array",
            items={"type": "string"},
            description="One name a line; empty: all surfaces of the source.",
            section="What",
        ),
        "warm_start": Param(
            True,
            type="boolean",
            description="Start from yesterday's champion; off: train the whole window anew.",
            section="How",
        ),
        "promote": Param(
            "auto",
            enum=list(PROMOTE),
            description="auto: the gates decide; never: compare only; force: skip the gates.",
            section="How",
        ),
        "overrides": Param(
            {},
            type="object",
            description='Fields of the config, dotted: {"mix.alpha": 0.5}.',
            section="How",
        ),
    }
