"""The assets that chain the DAGs; the partition key of each is the day."""

from __future__ import annotations

import os

from airflow.sdk import Asset, CronPartitionTimetable, PartitionedAtRuntime

mixed_day = Asset(name="mixed_day", uri="x-headwater://mixed_day")
foundation_model = Asset(name="foundation_model", uri="x-headwater://foundation_model")
representations = Asset(name="representations", uri="x-headwater://representations")
solaris_store = Asset(name="solaris_store", uri="x-headwater://solaris_store")
students = Asset(name="students", uri="x-headwater://students")


def daily_schedule() -> CronPartitionTimetable | PartitionedAtRuntime:
    """After each UTC midnight, for the day that ended; HEADWATER_SCHEDULE=off: never by itself.

    Midnight, because a backfill's range is compared with the partition's date and hour.
    """
    if os.environ.get("HEADWATER_SCHEDULE", "on") == "off":
        return PartitionedAtRuntime()
    return CronPartitionTimetable("0 0 * * *", timezone="UTC", run_offset=-1, key_format="%Y-%m-%d")
