"""### Solaris: representations, precompute and replay of a day

Extracts the foundation model's representations, precomputes user-ad vectors for the pairs that are
likely to be asked for, publishes them to the store, and replays the day's requests in event time.

**Inputs**: the asset `foundation_model`, partition `day`, whose event names the run folder.

**Outputs**: `lake/<dataset>/representations`, the store, `replay/coverage.json` and the vectors as
they would have been served; the assets `representations` and `solaris_store`, partition `day`.

**Rerun**: clear any task, or trigger with `day`: it takes that day's run that was resolved last.

**Backfill**: backfill `foundation_daily`; each day's model starts this DAG. Solaris alone: trigger
with `day`, or for a range with `day` and `until`: one run a day, one after the other. A day that
is done already computes nothing again.
"""

from __future__ import annotations

from airflow.sdk import DAG, PartitionedAssetTimetable

from dags._assets import foundation_model, representations, solaris_store
from dags._ranges import range_params, start_later_days
from dags._stages import find_run, list_units, stage

with DAG(
    dag_id="solaris_backfill",
    schedule=PartitionedAssetTimetable(assets=foundation_model),
    catchup=False,
    max_active_runs=1,
    params=range_params(),
    doc_md=__doc__,
    tags=["headwater"],
) as dag:
    start_later_days()
    run = find_run()
    represent = stage("represent")(run)
    contract = stage("representation_contract", outlets=[representations])(run)
    predict = stage("predict")(run)
    precompute = stage("precompute", mapped=True)(run, list_units("precompute", run))
    verify = stage("verify")(run)
    publish = stage("publish")(run)
    replay = stage("replay", outlets=[solaris_store])(run)
    track = stage("track")(run)

    represent >> contract >> predict >> precompute >> verify >> publish >> replay >> track
