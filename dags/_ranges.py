"""A range of days from one trigger form: the run takes the first, and starts one run a day more.

Each day is a DAG run and a partition of its own, seen, cleared and retried by itself.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import BaseOperator, Context, Param, get_current_context, task
from airflow.sdk.exceptions import AirflowFailException, DagRunTriggerException

from dags._days import later_days, resolve_day
from dags._stages import LIGHT, RETRIES, date_param, day_param
from pipeline.run.errors import ConfigError

SETTINGS: dict[str, Any] = {
    "pool": LIGHT,
    "execution_timeout": timedelta(minutes=5),
    **RETRIES,
}


class DayTrigger(BaseOperator):
    """Starts the task's own DAG for another day, once: a cleared task starts no second run."""

    template_fields = ("day",)

    def __init__(self, *, day: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.day = day

    def execute(self, context: Context) -> None:
        """Hand the run over to Airflow."""
        run_id = context["dag_run"].run_id  # type: ignore[union-attr]
        raise DagRunTriggerException(
            trigger_dag_id=self.dag_id,
            dag_run_id=f"{self.day}__of__{run_id}",
            conf={"day": self.day},
            reset_dag_run=False,
            skip_when_already_exists=True,
            wait_for_completion=False,
            allowed_states=["success"],
            failed_states=["failed"],
            poke_interval=60,
            deferrable=False,
        )


@task(task_id="later_days", **SETTINGS)
def list_later_days() -> list[str]:
    """The days after the run's own, to the form's `until`."""
    context = get_current_context()
    try:
        return later_days(context["params"], resolve_day(context["params"], context))
    except ConfigError as error:
        raise AirflowFailException(f"ConfigError: {error}") from None


def start_later_days() -> None:
    """The tasks of a range; without one they start nothing."""
    trigger = DayTrigger.partial(
        task_id="start_day",
        map_index_template="{{ task.day }}",
        doc_md="Starts this DAG for a later day of the form's range.",
        **SETTINGS,
    )
    trigger.expand(day=list_later_days())


def range_params() -> dict[str, Param]:
    """The form of a DAG that takes a range of days."""
    until = date_param("Until (UTC)", "The last day of a range that begins at Day; empty: one day.")
    return {"day": day_param(), "until": until}
