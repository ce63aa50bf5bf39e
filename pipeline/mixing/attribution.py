"""Last touch: which impression a conversion belongs to, and where its label goes.

A conversion that names its impression belongs to the latest impression of that id and user at or
before it. One that names none belongs to the user's latest impression at or before it, of its ad
when it names an ad. Among impressions of the same moment the last in canonical order counts, so
that a conversion never has two. Whether it came within the objective's window is asked after that:
when the latest impression is too old, every other one is older still.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

import polars as pl

from model.config import Objective
from pipeline.run.window import DAY_US, HOUR_US, Window, day_of_us

# Columns of conversions as read here; `at` is the conversion's time in microseconds.
CONVERSION_SCHEMA: Final = {
    "impression_id": pl.Int64,
    "user_id": pl.Int64,
    "ad_id": pl.Int64,
    "kind": pl.String,
    "at": pl.Int64,
}
PLACES: Final = ("earlier_run", "train", "holdout", "pending", "late", "no_impression")
Arrivals = Counter[tuple[str, str, str, bool]]


def attribute(rows: pl.DataFrame, came: pl.DataFrame) -> pl.DataFrame:
    """Every conversion once, with `g` and `ts_us` of its impression (null: none) and `named`.

    `rows` are a bucket's impressions (g, impression_id, user_id, ad_id, ts_us) in canonical order.
    """
    has_id, has_ad = pl.col("impression_id").is_not_null(), pl.col("ad_id").is_not_null()
    parts = (
        (came.filter(has_id), ["impression_id", "user_id"]),
        (came.filter(~has_id & has_ad), ["user_id", "ad_id"]),
        (came.filter(~has_id & ~has_ad), ["user_id"]),
    )
    joined = [_latest(rows, part, keys) for part, keys in parts]
    return pl.concat(joined).with_columns(has_id.alias("named"))


def in_time(objective: Objective) -> pl.Expr:
    """Whether a conversion came within the window of its impression."""
    return pl.col("at") < pl.col("ts_us") + objective.window_hours * HOUR_US


def arrivals(joined: pl.DataFrame, objective: Objective, window: Window) -> Arrivals:
    """Conversions of an objective by (kind, day of the impression, where they went, named).

    A label is known when its window closes: before the run's span ("earlier_run" has it), within
    it ("train", "holdout"), or after the day ("pending": masked until then). "late" ones came after
    the window and count nowhere; "no_impression" has no day.
    """
    mine = joined.filter(pl.col("kind") == objective.name)
    known = pl.col("ts_us") + objective.window_hours * HOUR_US
    place = (
        pl.when(pl.col("g").is_null())
        .then(pl.lit("no_impression"))
        .when(~in_time(objective))
        .then(pl.lit("late"))
        .when(known < window.train_begin)
        .then(pl.lit("earlier_run"))
        .when(known < window.cut)
        .then(pl.lit("train"))
        .when(known < window.day_end)
        .then(pl.lit("holdout"))
        .otherwise(pl.lit("pending"))
    )
    counted = mine.group_by((pl.col("ts_us") // DAY_US).alias("day"), place.alias("to"), "named")
    return Counter(
        {
            (objective.name, "" if day is None else day_of_us(day * DAY_US), to, named): count
            for day, to, named, count in counted.len().iter_rows()
        }
    )


def listed_arrivals(found: Arrivals) -> list[dict[str, object]]:
    """Arrivals as JSON, in a fixed order."""
    names = ("kind", "impression_day", "to", "named")
    return [
        dict(zip(names, key, strict=True)) | {"conversions": count}
        for key, count in sorted(found.items())
    ]


def _latest(rows: pl.DataFrame, came: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    # a join groups all that it is given, and few impressions have a conversion
    asked = pl.all_horizontal(pl.col(k).is_in(came[k].implode()) for k in keys)
    shown = rows.filter(asked).sort("ts_us", maintain_order=True)
    return came.sort("at", maintain_order=True).join_asof(
        shown.select(*keys, "g", "ts_us"),
        left_on="at",
        right_on="ts_us",
        by=keys,
        strategy="backward",
        coalesce=False,
        check_sortedness=False,
    )
