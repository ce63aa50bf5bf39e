"""The planted truth of impressions: what evaluation alone may read."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from data_contracts.schema import TRUTH_PREFIX
from pipeline.run.errors import DataError
from pipeline.run.paths import Run
from pipeline.run.window import DAY_US, day_of_us

TRUE_PREFIX = "true_"


def with_truth(run: Run, frame: pl.DataFrame) -> pl.DataFrame:
    """`frame` (impression_id, ts_us, ...) with `true_<objective>` columns, when data are planted.

    Rows keep their order. `DataError` when planted data lack the truth of a row.
    """
    if run.config.source.kind != "planted" or frame.is_empty():
        return frame
    names = [o.name for o in run.config.objectives]
    days = (frame["ts_us"] // DAY_US).unique().sort().to_list()
    truth = pl.concat([_day(run, int(day), names) for day in days])
    joined = frame.with_columns((pl.col("ts_us") // DAY_US).alias("day_number")).join(
        truth,
        on=["day_number", "impression_id"],
        how="left",
        maintain_order="left",
        validate="m:1",
    )
    found = [n for n in joined.columns if n.startswith(TRUE_PREFIX)]
    missing = joined.filter(pl.any_horizontal(pl.col(found).is_null()))
    if len(missing):
        raise DataError(
            f"{len(missing)} impressions have no planted truth, first "
            f"{missing['impression_id'].head(3).to_list()}; run ingest again"
        )
    return joined.drop("day_number")


def _day(run: Run, number: int, objectives: Sequence[str]) -> pl.DataFrame:
    folder = run.lake("truth", f"day={day_of_us(number * DAY_US)}")
    files = sorted(folder.glob("*.parquet"))
    if not files:
        raise DataError(f"{folder} holds no planted truth; run land and ingest for that day")
    frame = pl.read_parquet(files)
    wanted = [o for o in objectives if f"{TRUTH_PREFIX}{o}" in frame.columns]
    return frame.select(
        pl.lit(number, dtype=pl.Int64).alias("day_number"),
        pl.col("impression_id"),
        *(pl.col(f"{TRUTH_PREFIX}{o}").cast(pl.Float64).alias(f"{TRUE_PREFIX}{o}") for o in wanted),
    )
