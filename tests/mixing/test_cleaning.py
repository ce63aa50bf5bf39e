from __future__ import annotations

import datetime as dt

import polars as pl
import pytest

from pipeline.mixing.cleaning import Cleaned, Cleaner, Rules, repeated_ids, rules_of
from pipeline.run.errors import ContractError
from pipeline.run.presets import preset

DAY = "2026-03-05"
NOON = dt.datetime(2026, 3, 5, 12, tzinfo=dt.UTC)


def good(count: int = 1) -> pl.DataFrame:
    frame = pl.DataFrame(
        {
            "impression_id": range(count),
            "request_id": [1] * count,
            "ts": [NOON] * count,
            "surface": ["feed"] * count,
            "user_id": [7] * count,
            "ad_id": [8] * count,
            "campaign_id": [9] * count,
            "advertiser_id": [10] * count,
            "category_id": [11] * count,
            "objective": ["click"] * count,
            "position": [0] * count,
            "click": [0] * count,
            "user_cluster": [3] * count,
            "request_attribute": [4] * count,
            "purchase_intent": [0.5] * count,
        }
    )
    return frame.with_columns(pl.lit(0.25).alias(f"interest_{i}") for i in range(4))


def rules() -> Rules:
    return rules_of(preset(DAY, "smoke"), "impressions")


def with_value(column: str, value: object) -> pl.DataFrame:
    frame = good(3)
    values: list[object] = frame[column].to_list()
    values[1] = value
    return frame.with_columns(pl.Series(column, values, strict=False))


def cleaned(frame: pl.DataFrame) -> Cleaned:
    return cleaner(frame).part(frame)


def cleaner(frame: pl.DataFrame) -> Cleaner:
    return Cleaner(rules(), DAY, frame.columns, repeated_ids([frame]))


def reasons(result: Cleaned) -> dict[str, int]:
    return dict(result.rejected["reason"].value_counts().iter_rows())


def test_good_rows_pass_in_canonical_types() -> None:
    result = cleaned(good(4))
    assert len(result.frame) == 4
    assert result.frame.columns == rules().schema.names
    assert result.frame.schema["ts"] == pl.Datetime("us", "UTC")
    assert result.frame.schema["interest_0"] == pl.Float32
    assert len(result.rejected) == 0


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        ("user_id", None, "user_id is null"),
        ("ad_id", -1, "ad_id is not an integer"),
        ("click", 2, "click is not 0 or 1"),
        ("surface", "billboard", "surface is not one of"),
        ("surface", None, "surface is null"),
        ("ts", dt.datetime(2026, 3, 6, tzinfo=dt.UTC), "ts is outside the day"),
        ("ts", dt.datetime(2026, 3, 4, 23, 59, 59, 999999, tzinfo=dt.UTC), "ts is outside"),
        ("interest_2", float("nan"), "interest_2 is not a finite number"),
        ("interest_2", float("inf"), "interest_2 is not a finite number"),
        ("interest_2", 1e300, "interest_2 is not a finite number"),
        ("user_cluster", None, "user_cluster is null"),
        ("position", 70_000, "position is not in"),
        ("objective", "glory", "objective is not one of"),
    ],
)
def test_a_bad_value_costs_its_row_alone(column: str, value: object, reason: str) -> None:
    result = cleaned(with_value(column, value))
    assert result.frame["impression_id"].to_list() == [0, 2]
    assert result.rejected["reason"].item().startswith(reason)
    assert '"impression_id":1' in result.rejected["row"].item()


def test_unparsable_times_and_words_among_texts() -> None:
    frame = good(4).with_columns(
        pl.Series("ts", ["2026-03-05T01:00:00Z", "yesterday", "2026-03-05 02:00:00", ""]),
        pl.Series("user_id", ["1", "2", "somebody", "4"]),
    )
    result = cleaned(frame)
    assert result.frame["impression_id"].to_list() == [0]
    assert result.rejected["reason"].to_list() == [
        "ts is not a time",
        "user_id is not an integer of 0 or more",
        "ts is not a time",
    ]


def test_string_features_are_hashed_and_oversized_ones_refused() -> None:
    frame = good(3).with_columns(pl.Series("user_cluster", ["young", "y" * 300, "young"]))
    result = cleaned(frame)
    first, second = result.frame["user_cluster"].to_list()
    assert first == second > 2**32
    assert "user_cluster is no id" in result.rejected["reason"].item()


def test_the_first_valid_copy_of_an_impression_survives() -> None:
    frame = pl.concat([with_value("click", 3), good(3), good(1)])
    result = cleaned(frame)
    # row 1 is invalid at first, so that its later copy lives
    assert result.frame["impression_id"].to_list() == [0, 2, 1]
    assert result.rejected["duplicate"].sum() == 3
    assert reasons(result) == {"impression_id is a duplicate": 3, "click is not 0 or 1": 1}


def test_duplicates_are_found_across_surfaces() -> None:
    frame = pl.concat(
        [good(1), good(1).with_columns(pl.lit("reels").alias("surface")), good(2)[1:]]
    )
    result = cleaned(frame)
    assert result.frame["impression_id"].to_list() == [0, 1]
    assert result.frame["surface"].to_list() == ["feed", "feed"]
    assert result.rejected["surface"].to_list() == ["reels"]
    assert result.rejected["duplicate"].to_list() == [True]
    assert result.came.tolist()[-1] == 0
    assert result.came.sum() == 3


def test_copies_in_later_parts_are_found() -> None:
    parts = [with_value("click", 3), good(3), good(1)]
    mine = cleaner(pl.concat(parts))
    assert [mine.part(p).frame["impression_id"].to_list() for p in parts] == [[0, 2], [1], []]


def test_optional_columns_have_stand_ins_and_others_are_required() -> None:
    result = cleaned(good(2).drop("campaign_id", "position"))
    assert result.frame["campaign_id"].to_list() == [0, 0]
    assert cleaner(good(2).drop("campaign_id", "position")).defaulted == ("campaign_id", "position")
    with pytest.raises(ContractError, match="user_cluster"):
        cleaned(good(2).drop("user_cluster"))


def test_a_row_with_several_problems_is_counted_once() -> None:
    frame = with_value("click", 9).with_columns(pl.Series("user_id", [7, None, 7]))
    result = cleaned(frame)
    assert reasons(result) == {"user_id is null": 1}
