import polars as pl
import pytest

from data_contracts import frames
from data_contracts.rules import RowRule

RULE = RowRule(
    name="bad", shows="value", bad=pl.col("value") < 0, severity="critical", reason="below 0"
)
FRAME = pl.LazyFrame({"surface": ["a", "a", "b", None], "value": [1, -1, None, 4]})


def test_profile_counts_per_group_and_overall_and_takes_nulls_as_bad() -> None:
    found = frames.profile(
        FRAME, group="surface", rules=[RULE], figures={"top": pl.col("value").max()}
    )
    assert found.to_dict(as_series=False) == {
        "surface": ["all", "(null)", "a", "b"],
        "rows": [4, 1, 2, 1],
        "bad": [2, 0, 1, 1],
        "top": [4, 4, 1, None],
    }


def test_missing_groups_have_no_rows() -> None:
    found = frames.profile(FRAME, group="surface", rules=[RULE], figures={})
    more = frames.missing_groups(found, "surface", ["a", "c"])
    assert more.filter(pl.col("surface") == "c")["rows"].to_list() == [0]
    assert more.filter(pl.col("surface") == "c")["bad"].to_list() == [None]


def test_first_bad_values() -> None:
    found = frames.profile(FRAME, group="surface", rules=[RULE], figures={})
    assert frames.first_bad(FRAME, found, [RULE]) == {"bad": ["-1", "None"]}


@pytest.mark.parametrize(("limit", "expected"), [(10, [0, 1, 2, 3, 4]), (3, [0, 2, 4]), (1, [0])])
def test_sample_is_every_kth_row(limit: int, expected: list[int]) -> None:
    frame = pl.LazyFrame({"x": [0, 1, 2, 3, 4]})
    assert frames.sample(frame, 5, limit)["x"].to_list() == expected


def test_psi_by_hand_on_two_bins() -> None:
    today, before = pl.Series([0, 0, 0, 1]), pl.Series([0, 0, 1, 1])
    expected = 0.25 * 0.4054651 - 0.25 * -0.6931472
    assert frames.psi(today, before) == pytest.approx(expected, rel=1e-5)


def test_psi_of_the_same_numbers_is_zero_and_of_shifted_ones_is_large() -> None:
    numbers = pl.int_range(1_000, eager=True).cast(pl.Float64)
    assert frames.psi(numbers, numbers) == pytest.approx(0.0)
    assert (frames.psi(numbers + 500, numbers) or 0) > 1
    assert frames.psi(numbers.head(0), numbers) is None


def test_psi_compares_few_values_one_by_one_and_many_by_remainder() -> None:
    few, moved = pl.Series([0, 1, 2, 3] * 50), pl.Series([16, 17, 18, 19] * 50)
    assert (frames.psi(moved, few) or 0) > 1
    many = pl.int_range(6_400, eager=True)
    assert frames.psi(many + 16, many) == pytest.approx(0.0)
