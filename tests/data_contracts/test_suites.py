"""For every expectation of every suite: the good frame passes it, a broken frame fails it."""

from collections.abc import Callable
from dataclasses import replace

import polars as pl
import pytest

from data_contracts import frames, impressions, mixture, representations
from data_contracts.rules import Expectation
from data_contracts.runner import validate

DAY = 1_795_996_800_000_000  # 2026-11-30
HOUR = 3_600_000_000
IMPRESSIONS = impressions.ImpressionsSpec(
    surfaces=("feed", "reels"),
    sparse=("user_id", "cluster"),
    dense=("intent",),
    day_begin=DAY,
    day_end=DAY + 24 * HOUR,
)
MIXTURE = mixture.MixtureSpec(
    surfaces=("feed", "reels"),
    objectives=("click", "conversion"),
    events=("shown",),
    train_begin=DAY,
    cut=DAY + 12 * HOUR,
    day_end=DAY + 24 * HOUR,
)
VECTORS = representations.RepresentationsSpec(
    objectives=("click",), epoch="e1", fm_cut_us=DAY, dim=3
)
Change = Callable[[pl.DataFrame], pl.DataFrame]


def good_impressions(rows: int = 40) -> pl.DataFrame:
    n = pl.int_range(rows, eager=True)
    return pl.DataFrame(
        {
            "impression_id": n + 1,
            "request_id": n // 2,
            "ts": (DAY + n * 60_000_000).cast(pl.Datetime("us", "UTC")),
            "surface": (n % 2).cast(pl.String).replace({"0": "feed", "1": "reels"}),
            "user_id": n % 7,
            "ad_id": n % 5,
            "campaign_id": n % 3,
            "advertiser_id": n % 2,
            "category_id": n % 4,
            "objective": ["click"] * rows,
            "position": (n % 3).cast(pl.Int16),
            "click": (n % 8 == n % 2).cast(pl.Int8),
            "cluster": n % 6,
            "intent": (n / rows).cast(pl.Float32),
        }
    )


def good_mixture() -> pl.DataFrame:
    parts = []
    for selection, begin in (("train", DAY), ("holdout", MIXTURE.cut), ("log", DAY)):
        n = pl.int_range(20, eager=True)
        ts = begin + n * 60_000_000
        parts.append(
            pl.DataFrame(
                {
                    "selection": [selection] * 20,
                    "g": n,
                    "impression_id": n + 1,
                    "user_id": n % 5,
                    "ad_id": n % 4,
                    "surface": n % 2,
                    "ts_us": ts,
                    "label_us": ts,
                    "shift": [0.0] * 20,
                    "y_click": (n % 10 == n % 2).cast(pl.Int8),
                    "m_click": [True] * 20,
                    "w_click": pl.Series([1.0 if selection == "holdout" else 2.0] * 20),
                    "y_conversion": (n % 20 == n % 2).cast(pl.Int8),
                    "m_conversion": [True] * 20,
                    "w_conversion": [1.0] * 20,
                    "start_shown": n,
                    "end_shown": n + 2,
                }
            )
        )
    return pl.concat(parts)


def good_vectors() -> pl.DataFrame:
    n = pl.int_range(20, eager=True)
    return pl.DataFrame(
        {
            "impression_id": n,
            "user_id": n % 5,
            "ad_id": n % 4,
            "ts_us": DAY + n * HOUR * 2,
            "z": pl.Series([[1.0, -2.0, 3.0]] * 20),
            "logit_click": [-3.0] * 20,
            "epoch": ["e1"] * 20,
            "fm_cut_us": [DAY] * 20,
            "day": (n * 2 // 24).cast(pl.String),
        }
    )


def impression_frames(frame: pl.DataFrame) -> dict[str, pl.DataFrame]:
    spec = replace(IMPRESSIONS)
    before = good_impressions(2_000).lazy()
    return {
        "profile": impressions.profile(frame.lazy(), spec, before),
        "sample": frame,
    }


def mixture_frames(frame: pl.DataFrame) -> dict[str, pl.DataFrame]:
    return {"profile": mixture.profile(frame.lazy(), MIXTURE), "sample": frame}


def vector_frames(frame: pl.DataFrame) -> dict[str, pl.DataFrame]:
    ready = representations.prepared(frame.lazy())
    wanted = pl.DataFrame({"day": ["0", "1"], "rows": [12, 8]})
    return {"profile": representations.profile(ready, VECTORS, wanted), "sample": ready.collect()}


def put(column: str, value: object, rows: int = 3) -> Change:
    """Rows 0.. get `value` in `column` (its type may widen)."""

    def change(frame: pl.DataFrame) -> pl.DataFrame:
        old = frame[column].to_list()
        return frame.with_columns(pl.Series(column, [value] * rows + old[rows:], strict=False))

    return change


def keep(predicate: pl.Expr) -> Change:
    return lambda frame: frame.filter(predicate)


def twice(frame: pl.DataFrame) -> pl.DataFrame:
    return pl.concat([frame, frame.head(2)])


CASES = [
    ("impressions", impressions.suite(IMPRESSIONS), good_impressions(400), impression_frames),
    ("mixture", mixture.suite(MIXTURE), good_mixture(), mixture_frames),
    ("vectors", representations.suite(VECTORS), good_vectors(), vector_frames),
]
NULLS = {
    "impressions": [(f"null_{c}", put(c, None)) for c in IMPRESSIONS.required],
    "mixture": [(f"null_{c}", put(c, None)) for c in MIXTURE.required],
    "vectors": [(f"null_{c}", put(c, None)) for c in VECTORS.required],
}
# One entry per other column of a suite: the change that must break its expectation.
BROKEN: dict[str, dict[str, Change]] = {
    "impressions": {
        "rows": keep(pl.lit(False)),
        "unknown_surface": put("surface", "billboard"),
        "click_not_0_1": put("click", 2),
        "outside_the_day": put("ts", None),
        "negative_impression_id": put("impression_id", -1),
        "negative_request_id": put("request_id", -1),
        "negative_user_id": put("user_id", -1),
        "negative_ad_id": put("ad_id", -1),
        "negative_campaign_id": put("campaign_id", -1),
        "negative_advertiser_id": put("advertiser_id", -1),
        "negative_category_id": put("category_id", -1),
        "not_finite_intent": put("intent", float("nan")),
        "unknown_objective": put("objective", "fame"),
        "negative_position": put("position", -2),
        "duplicates": twice,
        "click_rate": lambda f: f.with_columns(click=pl.lit(0, pl.Int8)),
        "users": lambda f: f.with_columns(user_id=pl.lit(4, pl.Int64)),
        "psi_user_id": lambda f: f.with_columns(user_id=pl.lit(4, pl.Int64)),
        "psi_cluster": lambda f: f.with_columns(cluster=pl.lit(4, pl.Int64)),
        "psi_intent": lambda f: f.with_columns(intent=pl.lit(0.5, pl.Float32)),
        "surface": put("surface", "billboard"),
        "click": put("click", 2),
        "objective": put("objective", "fame"),
        "position": put("position", -2),
        "impression_id": twice,
    },
    "mixture": {
        "rows": keep(pl.lit(False)),
        "surface_out_of_range": put("surface", 2),
        "train_label_outside": put("label_us", MIXTURE.cut),
        "holdout_label_outside": lambda f: f.with_columns(
            label_us=pl.when(pl.col("selection") == "holdout")
            .then(MIXTURE.cut - 1)
            .otherwise("label_us")
        ),
        "label_before_impression": put("ts_us", MIXTURE.day_end),
        "shift_out_of_range": put("shift", float("nan")),
        "holdout_shifted": lambda f: f.with_columns(shift=pl.lit(0.5)),
        "label_not_0_1_click": put("y_click", 2),
        "label_not_0_1_conversion": put("y_conversion", 2),
        "weight_out_of_range_click": put("w_click", float("inf")),
        "weight_out_of_range_conversion": put("w_conversion", -1.0),
        "holdout_weighted_click": lambda f: f.with_columns(w_click=pl.lit(3.0)),
        "holdout_weighted_conversion": lambda f: f.with_columns(w_conversion=pl.lit(3.0)),
        "bad_span_shown": put("end_shown", -1),
        "duplicates": twice,
        "rate_click": lambda f: f.with_columns(y_click=pl.lit(0)),
        "rate_conversion": lambda f: f.with_columns(y_conversion=pl.lit(1)),
        "surface": put("surface", 2),
        "y_click": put("y_click", 2),
        "y_conversion": put("y_conversion", 2),
        "w_click": put("w_click", -1.0),
        "w_conversion": put("w_conversion", -1.0),
    },
    "vectors": {
        "rows": keep(pl.lit(False)),
        "coverage": keep(pl.col("impression_id") != 4),
        "epochs": put("epoch", "e0"),
        "wrong_epoch": put("epoch", "e0"),
        "wrong_fm_cut": put("fm_cut_us", DAY - 1),
        "leak": put("ts_us", DAY - 1),
        "wrong_width": put("z", [1.0, 2.0]),
        "vector_not_finite": put("z", [1.0, float("nan"), 2.0]),
        "zero_norm": put("z", [0.0, 0.0, 0.0]),
        "logit_not_finite_click": put("logit_click", float("nan")),
        "duplicates": twice,
        "mean_logit_click": lambda f: f.with_columns(logit_click=pl.lit(30.0)),
        "epoch": put("epoch", "e0"),
        "norm": put("z", [0.0, 0.0, 0.0]),
        "logit_click": put("logit_click", 60.0),
    },
}


Levels = Callable[[pl.DataFrame], dict[str, pl.DataFrame]]


def each_broken(
    suite: list[Expectation], good: pl.DataFrame, levels: Levels, changes: dict[str, Change]
) -> dict[str, pl.DataFrame]:
    """The levels of the good frame, but every column that an expectation looks at is taken from
    the frame that breaks it: one run of a suite then sees every expectation broken, each by its
    own frame.
    """
    columns: dict[str, dict[str, pl.Series]] = {"profile": {}, "sample": {}}
    for expectation in suite:
        column = expectation.arguments["column"]
        broken = levels(changes[column](good))[expectation.on]
        columns[expectation.on][column] = broken[column]
    heights = {level: max(map(len, found.values())) for level, found in columns.items()}
    return {
        level: pl.DataFrame(
            {n: s.extend_constant(None, heights[level] - len(s)) for n, s in found.items()}
        )
        for level, found in columns.items()
    }


@pytest.mark.parametrize(("name", "suite", "good", "levels"), CASES, ids=[c[0] for c in CASES])
def test_every_expectation_has_a_change_that_is_to_break_it(
    name: str, suite: list[Expectation], good: pl.DataFrame, levels: Levels
) -> None:
    columns = {e.arguments["column"] for e in suite}
    assert columns == set(dict(NULLS[name]) | BROKEN[name])


@pytest.mark.parametrize(("name", "suite", "good", "levels"), CASES, ids=[c[0] for c in CASES])
def test_the_good_frame_passes_every_expectation(
    name: str, suite: list[Expectation], good: pl.DataFrame, levels: Levels
) -> None:
    assert [v.line for v in validate("suite", suite, levels(good)) if not v.success] == []


@pytest.mark.parametrize(("name", "suite", "good", "levels"), CASES, ids=[c[0] for c in CASES])
def test_every_expectation_fails_on_the_frame_that_breaks_it(
    name: str, suite: list[Expectation], good: pl.DataFrame, levels: Levels
) -> None:
    changes = dict(NULLS[name]) | BROKEN[name]
    verdicts = validate("suite", suite, each_broken(suite, good, levels, changes))
    for expectation, verdict in zip(suite, verdicts, strict=True):
        assert not verdict.success, expectation.label
        assert verdict.observed, expectation.label
        assert verdict.reason
        assert verdict.severity in {"critical", "warning"}


def test_first_bad_values_are_those_of_the_rows() -> None:
    frame = put("user_id", -9)(good_impressions())
    rules = impressions.row_rules(IMPRESSIONS)
    profiled = impressions.profile(frame.lazy(), IMPRESSIONS, None)
    assert frames.first_bad(frame.lazy(), profiled, rules) == {
        "negative_user_id": ["-9", "-9", "-9"]
    }
