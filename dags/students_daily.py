"""### Students: one small model per surface

Trains each surface's student with and without what the foundation model knows (soft labels,
representations, vectors as the store would have served them), measures how much of its gain
arrives, and decides which students serve.

**Inputs**: the assets `foundation_model`, `representations` and `solaris_store`, partition `day`.

**Outputs**: per surface arms and metrics, the transfer table, decisions and the day's report; the
asset `students`, partition `day`.

**Rerun**: clear any task, or trigger with `day`: it takes that day's run that was resolved last.

**Backfill**: backfill `foundation_daily`; each day starts this DAG when its three assets are there.
One day alone: trigger with `day`.
"""

from __future__ import annotations

from airflow.sdk import DAG, PartitionedAssetTimetable

from dags._assets import foundation_model, representations, solaris_store, students
from dags._stages import day_param, find_run, list_units, stage

with DAG(
    dag_id="students_daily",
    schedule=PartitionedAssetTimetable(assets=foundation_model & representations & solaris_store),
    catchup=False,
    max_active_runs=1,
    params={"day": day_param()},
    doc_md=__doc__,
    tags=["headwater"],
) as dag:
    run = find_run()
    as_served = stage("as_served")(run)
    transfer = stage("transfer", mapped=True)(run, list_units("transfer", run))
    evaluate = stage("evaluate_students")(run)
    promote = stage("promote_students", outlets=[students])(run)
    track = stage("track")(run)
    report = stage("report")(run)

    as_served >> transfer >> evaluate >> promote >> [track, report]
