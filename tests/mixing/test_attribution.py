"""Last touch, against a search over all pairs; and the account of where conversions went."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plane_world import LAST, impressions, ingest_all, land_frame, landed_run

from model.config import Objective
from pipeline.mixing.attribution import (
    CONVERSION_SCHEMA,
    PLACES,
    arrivals,
    attribute,
    listed_arrivals,
)
from pipeline.mixing.labels import labels
from pipeline.run.window import DAY_US, HOUR_US, Window, day_begin_us, window_of

BUY = Objective(name="conversion", window_hours=24)
small = st.integers(0, 3)
shown_rows = st.lists(st.tuples(small, small, small, st.integers(0, 30)), max_size=12)
some = st.one_of(st.none(), small)
came_rows = st.lists(st.tuples(some, small, some, st.integers(0, 40)), max_size=12)


def shown_frame(rows: list[tuple[int, int, int, int]]) -> pl.DataFrame:
    schema = {n: pl.Int64 for n in ("impression_id", "user_id", "ad_id", "ts_us")}
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    return frame.with_row_index("g").with_columns(pl.col("g").cast(pl.Int64))


def came_frame(rows: list[tuple[int | None, int, int | None, int]]) -> pl.DataFrame:
    whole = [(i, user, ad, "conversion", at) for i, user, ad, at in rows]
    return pl.DataFrame(whole, schema=CONVERSION_SCHEMA, orient="row")


def by_search(
    shown: list[tuple[int, int, int, int]], one: tuple[int | None, int, int | None, int]
) -> int | None:
    """Place of the last impression that a conversion may belong to."""
    wanted_id, user, wanted_ad, at = one
    best: tuple[int, int] | None = None
    for place, (impression, owner, ad, ts) in enumerate(shown):
        match = owner == user and ts <= at
        if wanted_id is not None:
            match = match and impression == wanted_id
        elif wanted_ad is not None:
            match = match and ad == wanted_ad
        if match:
            best = max(best or (ts, place), (ts, place))
    return best[1] if best else None


@settings(max_examples=60, deadline=None)
@given(shown=shown_rows, came=came_rows)
def test_every_conversion_has_its_last_touch_and_no_other(shown, came):
    joined = attribute(shown_frame(shown), came_frame(came))
    assert len(joined) == len(came)
    keys = ("impression_id", "user_id", "ad_id", "at")
    found = sorted(zip(*(joined[k] for k in keys), joined["g"], strict=True), key=repr)
    assert found == sorted(((*one, by_search(shown, one)) for one in came), key=repr)


def test_a_named_impression_is_not_replaced_by_a_later_one():
    shown = shown_frame([(1, 0, 5, 10), (2, 0, 5, 20)])
    joined = attribute(shown, came_frame([(1, 0, 5, 30), (None, 0, 5, 30), (9, 0, 5, 30)]))
    assert dict(zip(joined["impression_id"], joined["g"], strict=True)) == {1: 0, None: 1, 9: None}


def test_arrivals_say_of_which_day_and_where_to():
    hours = [(1, 0), (2, 30), (3, 50), (4, 60), (5, 80)]
    shown = shown_frame([(i, i, 0, h * HOUR_US) for i, h in hours])
    window = Window(
        train_begin=2 * DAY_US, students_begin=0, cut=80 * HOUR_US, day_end=96 * HOUR_US, days=()
    )
    came = [(i, i, None, (h + 1) * HOUR_US) for i, h in hours]
    came += [(1, 1, None, 30 * HOUR_US), (None, 2, None, 31 * HOUR_US), (7, 7, None, HOUR_US)]
    found = listed_arrivals(arrivals(attribute(shown, came_frame(came)), BUY, window))
    seen = {(f["impression_day"], f["to"], f["named"]): f["conversions"] for f in found}
    assert seen == {
        ("", "no_impression", True): 1,
        ("1970-01-01", "earlier_run", True): 1,
        ("1970-01-01", "late", True): 1,
        ("1970-01-02", "train", True): 1,
        ("1970-01-02", "train", False): 1,
        ("1970-01-03", "train", True): 1,
        ("1970-01-03", "holdout", True): 1,
        ("1970-01-04", "pending", True): 1,
    }
    assert {f["to"] for f in found} == set(PLACES)


@pytest.mark.parametrize("with_ad", [True, False])
def test_conversions_without_impression_ids_through_the_stages(
    tmp_path: Path, with_ad: bool
) -> None:
    """Two impressions of one user an hour apart; the conversion's file has no impression_id."""
    run = landed_run(tmp_path, count=3)
    days = window_of(run.config).days
    for day in days:
        frame = impressions(day, 2).with_columns(
            pl.lit(1, dtype=pl.Int64).alias("user_id"),
            pl.Series("ad_id", [5, 6]),
            pl.Series("ts", [day_begin_us(day), day_begin_us(day) + HOUR_US]).cast(
                pl.Datetime("us", "UTC")
            ),
        )
        land_frame(run, "impressions", day, frame)
        land_frame(run, "conversions", day, pl.DataFrame())
    at = pl.Series([day_begin_us(days[0]) + 2 * HOUR_US]).cast(pl.Datetime("us", "UTC"))
    bought = pl.DataFrame({"user_id": [1], "kind": ["conversion"], "ts": at})
    if with_ad:
        bought = bought.with_columns(pl.lit(5, dtype=pl.Int64).alias("ad_id"))
    land_frame(run, "conversions", days[0], bought)
    ingest_all(run)
    figures = labels(run, "").read_figures()
    paths = [run.output("labels") / f"bucket={b}.parquet" for b in (0, 1)]
    table = pl.concat(pl.read_parquet(p) for p in paths).sort("ts_us")
    assert table["y_conversion"].to_list() == ([1, 0] if with_ad else [0, 1]) + [0, 0] * 2
    assert figures["conversion_last_touch"] == figures["conversion_attributed"] == 1
    assert sum(a["conversions"] for a in figures["arrivals"]) == 1
    assert run.config.day == LAST
