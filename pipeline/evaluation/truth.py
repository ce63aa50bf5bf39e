"""The planted truth of impressions, for evaluation and the scaling law's ladder alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from data_contracts.schema import TERM_PREFIX, TRUTH_PREFIX
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
    names = {f"{TRUTH_PREFIX}{o.name}": f"{TRUE_PREFIX}{o.name}" for o in run.config.objectives}
    return _joined(run, frame, names)


def with_terms(run: Run, frame: pl.DataFrame, terms: Sequence[str]) -> pl.DataFrame:
    """`frame` with `true_click` and the named `term_` columns of the planted click logit."""
    wanted = {f"{TRUTH_PREFIX}click": f"{TRUE_PREFIX}click"}
    return _joined(run, frame, wanted | {f"{TERM_PREFIX}{t}": f"{TERM_PREFIX}{t}" for t in terms})


def _joined(run: Run, frame: pl.DataFrame, names: Mapping[str, str]) -> pl.DataFrame:
    days = (frame["ts_us"] // DAY_US).unique().sort().to_list()
    truth = pl.concat([_day(run, int(day), names) for day in days])
    joined = frame.with_columns((pl.col("ts_us") // DAY_US).alias("day_number")).join(
        truth,
        on=["day_number", "impression_id"],
        how="left",
        maintain_order="left",
        validate="m:1",
    )
    found = [n for n in names.values() if n in joined.columns]
    missing = joined.filter(pl.any_horizontal(pl.col(found).is_null()))
    if len(missing):
        raise DataError(
            f"{len(missing)} impressions have no planted truth, first "
            f"{missing['impression_id'].head(3).to_list()}; run ingest again"
        )
    return joined.drop("day_number")


def _day(run: Run, number: int, names: Mapping[str, str]) -> pl.DataFrame:
    folder = run.lake("truth", f"day={day_of_us(number * DAY_US)}")
    files = sorted(folder.glob("*.parquet"))
    if not files:
        raise DataError(f"{folder} holds no planted truth; run land and ingest for that day")
    frame = pl.read_parquet(files)
    return frame.select(
        pl.lit(number, dtype=pl.Int64).alias("day_number"),
        pl.col("impression_id"),
        *(pl.col(n).cast(pl.Float64).alias(to) for n, to in names.items() if n in frame.columns),
    )
