"""### The foundation model's day

Mixes one day of all surfaces, trains the central model on it, scores it against the champion and
decides which one serves.

**Inputs**: the source's logs up to the end of `day` (planted days are generated).

**Outputs**: a run folder `runs/<day>/<run>` with a manifest per stage; the assets `mixed_day` and
`foundation_model`, partition `day`, which start `solaris_backfill` and then `students_daily`.

**Rerun**: clear any task, or trigger the day again with the same form. Stages whose inputs did not
change return at once; a changed form makes a run of its own.

**Backfill**: `airflow backfill create --dag-id foundation_daily --from-date 2026-11-01
--to-date 2026-11-07` (both included). Days run one after the other, oldest first, each from the
champion of the day before.

**By hand**: `python -m pipeline resolve --day 2026-11-29`, then each task's command.
"""

from __future__ import annotations

from airflow.sdk import DAG

from dags._assets import daily_schedule, foundation_model, mixed_day
from dags._stages import list_units, request_params, resolve, stage

with DAG(
    dag_id="foundation_daily",
    schedule=daily_schedule(),
    catchup=False,
    max_active_runs=1,
    params=request_params(),
    doc_md=__doc__,
    tags=["headwater"],
) as dag:
    run = resolve()
    landed = stage("land")(run)
    ingested = stage("ingest", mapped=True)(run, list_units("ingest", run))
    contracts = stage("contracts")(run)
    labels = stage("labels")(run)
    timelines = stage("timelines", mapped=True)(run, list_units("timelines", run))
    mix = stage("mix")(run)
    mixture = stage("mixture_contract", outlets=[mixed_day])(run)
    pretrain = stage("pretrain")(run)
    evaluate = stage("evaluate")(run)
    promote = stage("promote", outlets=[foundation_model])(run)
    track = stage("track")(run)
    report = stage("report")(run)

    # contracts take their time and only have to pass before anything is trained
    landed >> ingested >> [contracts, labels, timelines]
    [labels, timelines] >> mix
    [contracts, mix] >> mixture >> pretrain >> evaluate >> promote >> [track, report]
