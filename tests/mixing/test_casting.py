from __future__ import annotations

import datetime as dt

import polars as pl
import pytest

from pipeline.mixing import casting

NOON = dt.datetime(2026, 3, 5, 12, tzinfo=dt.UTC)
NOON_US = int(NOON.timestamp()) * 1_000_000


@pytest.mark.parametrize(
    "text",
    [
        "2026-03-05T12:00:00Z",
        "2026-03-05 12:00:00",
        "2026-03-05T12:00",
        "2026-03-05T14:00:00+02:00",
        "2026-03-05T14:00:00.000+0200",
        f" {NOON_US} ",
    ],
)
def test_texts_of_one_moment(text: str) -> None:
    assert casting.to_time(pl.Series(["junk", text, None])).to_list() == [None, NOON, None]


def test_times_of_other_types() -> None:
    paris = pl.Series([NOON]).dt.convert_time_zone("Europe/Paris")
    assert casting.to_time(paris).to_list() == [NOON]
    assert casting.to_time(pl.Series([NOON_US])).to_list() == [NOON]
    naive = pl.Series([NOON.replace(tzinfo=None)], dtype=pl.Datetime("ns"))
    assert casting.to_time(naive).to_list() == [NOON]
    midnight = NOON.replace(hour=0)
    assert casting.to_time(pl.Series([midnight.date()])).to_list() == [midnight]
    assert casting.to_time(pl.Series(["2026-03-05"])).to_list() == [midnight]
    assert casting.to_time(pl.Series([True])).to_list() == [None]


def test_integers_come_from_whole_numbers_alone() -> None:
    assert casting.to_integer(pl.Series([1.0, 2.5, float("nan"), 1e300])).to_list() == [
        1,
        None,
        None,
        None,
    ]
    assert casting.to_integer(pl.Series(["7", "7.0", "", "9" * 30])).to_list() == [
        7,
        None,
        None,
        None,
    ]
    assert casting.to_id(pl.Series([2**64 - 1, 3], dtype=pl.UInt64)).to_list() == [None, 3]
    assert casting.to_integer(pl.Series([[1]])).to_list() == [None]


def test_feature_ids_are_the_same_from_numbers_and_their_texts() -> None:
    texts = pl.Series(["12", "012", "red", None, "red"])
    ids = casting.to_feature_id(texts).to_list()
    assert ids[0] == casting.to_feature_id(pl.Series([12])).item() == 12
    assert ids[1] not in (12, None)
    assert ids[3] is None
    assert ids[2] == ids[4]
    coded = texts.cast(pl.Categorical)
    assert casting.to_feature_id(coded).to_list() == ids


def test_numbers_must_be_finite_in_their_type() -> None:
    kind = pl.Float32()
    assert casting.to_number(pl.Series([1e300, 0.5]), kind).to_list() == [None, 0.5]
    assert casting.to_number(pl.Series(["0.5", "inf", "x"]), kind).to_list() == [0.5, None, None]
    assert casting.to_number(pl.Series([NOON]), kind).to_list() == [None]


def test_ranges_and_texts() -> None:
    assert casting.to_range(pl.Series([True, None]), 0, 1, pl.Int8()).to_list() == [1, None]
    assert casting.to_range(pl.Series([0, 2]), 0, 1, pl.Int8()).to_list() == [0, None]
    assert casting.to_text(pl.Series(["a", "b"]), ("a",)).to_list() == ["a", None]
    assert casting.to_text(pl.Series([1, 2]), ("1",)).to_list() == ["1", None]
    assert casting.to_text(pl.Series(["é" * 200]), None).to_list() == [None]
