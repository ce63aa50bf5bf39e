"""Contract of raw impressions: what a day must look like before anything is made from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from data_contracts import frames
from data_contracts.rules import (
    Expectation,
    RowRule,
    between,
    in_set,
    none_bad,
    unique,
    zero,
)
from data_contracts.schema import IMPRESSION_IDS, IMPRESSIONS, OBJECTIVES

# Moved since yesterday (the usual rule of thumb), and another thing than yesterday: a dense column
# that got stuck at one value has a PSI near 9, one on another scale more.
PSI_LIMIT = 0.25
PSI_BROKEN = 5.0
GROUP = "surface"


@dataclass(frozen=True, kw_only=True)
class ImpressionsSpec:
    """What the day's impressions are checked against; times in microseconds UTC."""

    surfaces: tuple[str, ...]
    sparse: tuple[str, ...]
    dense: tuple[str, ...]
    day_begin: int
    day_end: int

    @property
    def required(self) -> tuple[str, ...]:
        """Columns that must be there and hold no null."""
        return tuple(dict.fromkeys((*IMPRESSIONS.names, *self.sparse, *self.dense)))


def row_rules(spec: ImpressionsSpec) -> list[RowRule]:
    """Rules on every row."""
    time = pl.col("ts").dt.timestamp("us")
    ids = dict.fromkeys(("impression_id", "request_id", *IMPRESSION_IDS))
    return [
        *frames.null_rules(spec.required),
        _critical("unknown_surface", "surface", ~pl.col("surface").is_in(spec.surfaces),
                  "a surface without a name has no tower and no student"),
        _critical("click_not_0_1", "click", ~pl.col("click").is_in([0, 1]),
                  "labels are 0 or 1"),
        _critical("outside_the_day", "ts", (time < spec.day_begin) | (time >= spec.day_end),
                  "a row of another day would be trained twice or leak"),
        *(_critical(f"negative_{n}", n, pl.col(n) < 0, "ids are hashed as non-negative numbers")
          for n in ids),
        *(_critical(f"not_finite_{n}", n, ~pl.col(n).is_finite(), "one NaN spoils a whole batch")
          for n in spec.dense),
        RowRule(name="unknown_objective", shows="objective", severity="warning",
                bad=~pl.col("objective").is_in(OBJECTIVES),
                reason="campaigns with an unknown goal are trained for clicks only"),
        RowRule(name="negative_position", shows="position", severity="warning",
                bad=pl.col("position") < 0, reason="positions count from 0"),
    ]  # fmt: skip


def profile(
    frame: pl.LazyFrame, spec: ImpressionsSpec, yesterday: pl.LazyFrame | None
) -> pl.DataFrame:
    """One row per surface: rows, broken rules, duplicates, click rate, users, and PSI (all)."""
    figures = {
        "duplicates": pl.len() - pl.col("impression_id").n_unique(),
        "click_rate": pl.col("click").mean(),
        "users": pl.col("user_id").n_unique(),
        "ads": pl.col("ad_id").n_unique(),
    }
    found = frames.profile(frame, group=GROUP, rules=row_rules(spec), figures=figures)
    found = frames.missing_groups(found, GROUP, spec.surfaces)
    return found.with_columns(_psi_columns(frame, spec, yesterday, len(found)))


def suite(spec: ImpressionsSpec) -> list[Expectation]:
    """The expectations of the boundary, profile first."""
    return [
        between("rows", 1, None, severity="warning", reason="a surface without a row is silent"),
        Expectation(
            kind="ExpectColumnMaxToBeBetween",
            arguments={"column": "rows", "min_value": 1},
            severity="critical",
            reason="a day without impressions cannot be trained on",
        ),
        *none_bad(row_rules(spec)),
        zero("duplicates", severity="critical",
                reason="an impression that counts twice is trained twice"),
        between("click_rate", 1e-5, 0.95, severity="warning",
                reason="no clicks, or nothing but clicks, is a broken label more often than not"),
        between("users", 2, None, severity="warning", reason="one user is a robot or a bug"),
        *(between(f"psi_{n}", None, PSI_LIMIT, severity="warning",
                  reason="the feature's distribution moved since yesterday")
          for n in (*spec.sparse, *spec.dense)),
        *(between(f"psi_{n}", None, PSI_BROKEN, severity="critical",
                  reason="a number that is stuck, or on another scale, spoils every score")
          for n in spec.dense),
        in_set("surface", spec.surfaces, on="sample", severity="critical",
               reason="surfaces are declared in the config"),
        in_set("click", [0, 1], on="sample", severity="critical", reason="labels are 0 or 1"),
        in_set("objective", OBJECTIVES, on="sample", severity="warning",
               reason="objectives are declared in the schema"),
        between("position", 0, None, on="sample", severity="warning",
                reason="positions count from 0"),
        unique("impression_id", severity="critical", reason="it is the key of an impression"),
    ]  # fmt: skip


def _psi_columns(
    frame: pl.LazyFrame, spec: ImpressionsSpec, yesterday: pl.LazyFrame | None, height: int
) -> list[pl.Series]:
    names = (*spec.sparse, *spec.dense)
    today, before = _columns(frame, names), _columns(yesterday, names)
    found = {
        n: frames.psi(today[n].drop_nulls(), before[n].drop_nulls())
        if n in today.columns and n in before.columns
        else None
        for n in names
    }
    return [
        pl.Series(f"psi_{n}", [value, *[None] * (height - 1)], dtype=pl.Float64)
        for n, value in found.items()
    ]


def _columns(frame: pl.LazyFrame | None, names: Sequence[str]) -> pl.DataFrame:
    if frame is None:
        return pl.DataFrame()
    kinds = frame.collect_schema()
    known = [n for n in names if n in kinds and kinds[n].is_numeric()]
    (num_rows,) = frame.select(pl.len()).collect().row(0)
    return frames.sample(frame.select(known), num_rows)


def _critical(name: str, shows: str, bad: pl.Expr, reason: str) -> RowRule:
    return RowRule(name=name, shows=shows, bad=bad, severity="critical", reason=reason)
