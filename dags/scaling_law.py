"""### The scaling law

Trains a ladder of models, Kunlun and its rivals at the same FLOPs per row, on planted logs whose
truth is known, fits `NE(C) = NE0 - eta log(C / C0)` to every family and predicts the largest rung.

**Inputs**: planted days (generated), variant `scaling`; the ladder is the config's `scaling`.

**Outputs**: one result per trial and point in the run folder, `scaling_fit/fit.json` with its plot,
the MLflow experiment `scaling-law`, and a section of the run's report.

**Rerun**: clear any task, or trigger again with the same form: models that are trained are found,
so a ladder goes on where it was cut short.

**Backfill**: none; the DAG is started by hand. The day only names the run and its last planted day.

**By hand**: `python -m pipeline scaling --day 2026-11-29` runs the same stages, some at a time.
"""

from __future__ import annotations

from airflow.sdk import DAG

from dags._stages import ladder_params, list_units, resolve, stage

with DAG(
    dag_id="scaling_law",
    schedule=None,
    catchup=False,
    max_active_runs=1,
    params=ladder_params(),
    doc_md=__doc__,
    tags=["headwater"],
) as dag:
    run = resolve()
    landed = stage("land")(run)
    ingested = stage("ingest", mapped=True)(run, list_units("ingest", run))
    labels = stage("labels")(run)
    timelines = stage("timelines", mapped=True)(run, list_units("timelines", run))
    mix = stage("mix")(run)
    tune = stage("scaling_tune", mapped=True)(run, list_units("scaling_tune", run))
    # a ladder whose learning rates are known has no trials, and their task is skipped
    train = stage("scaling_point", mapped=True, trigger_rule="none_failed")(
        run, list_units("scaling_point", run)
    )
    fit = stage("scaling_fit")(run)
    track = stage("track")(run)
    report = stage("report")(run)

    landed >> ingested >> [labels, timelines] >> mix >> tune >> train >> fit >> [track, report]
