"""Profile frames: polars looks at every row once and leaves one small row per group.

Great Expectations then validates the profile: rules on all data at a constant cost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from data_contracts.rules import RowRule

ALL = "all"
SAMPLE_ROWS = 20_000
PSI_BINS = 16
# Categories of up to so many values are compared value by value.
PSI_VALUES = 32
# A bin that one side lacks counts as this share, so that PSI stays finite.
PSI_FLOOR = 1e-4
FIRST_BAD = 3


def profile(
    frame: pl.LazyFrame,
    *,
    group: str,
    rules: Sequence[RowRule],
    figures: Mapping[str, pl.Expr],
) -> pl.DataFrame:
    """One row per value of `group` and one for "all": rows, rule counts and figures."""
    columns = [
        pl.len().alias("rows"),
        *(rule.bad.fill_null(True).sum().alias(rule.name) for rule in rules),
        *(figure.alias(name) for name, figure in figures.items()),
    ]
    label = pl.col(group).cast(pl.String).fill_null("(null)").alias(group)
    groups = frame.group_by(label).agg(columns)
    whole = frame.select(pl.lit(ALL).alias(group), *columns)
    whole_frame, groups_frame = pl.collect_all([whole, groups])
    return pl.concat([whole_frame, groups_frame.sort(group)], how="vertical_relaxed")


def missing_groups(profiled: pl.DataFrame, group: str, expected: Sequence[str]) -> pl.DataFrame:
    """`profiled` with a row of 0 rows for every expected group that has none."""
    absent = [name for name in expected if name not in profiled[group].to_list()]
    if not absent:
        return profiled
    empty = pl.DataFrame({group: absent, "rows": [0] * len(absent)})
    return pl.concat([profiled, empty], how="diagonal_relaxed")


def first_bad(
    frame: pl.LazyFrame, profiled: pl.DataFrame, rules: Sequence[RowRule]
) -> dict[str, list[str]]:
    """For each rule that the profile counts as broken: the first values that break it."""
    totals = profiled.head(1)
    broken = [rule for rule in rules if totals[rule.name][0]]
    found = pl.collect_all(
        [
            frame.filter(rule.bad.fill_null(True)).select(rule.shows).head(FIRST_BAD)
            for rule in broken
        ]
    )
    return {
        rule.name: [str(value) for value in values.to_series().to_list()]
        for rule, values in zip(broken, found, strict=True)
    }


def sample(frame: pl.LazyFrame, num_rows: int, limit: int = SAMPLE_ROWS) -> pl.DataFrame:
    """Every k-th row, so that at most `limit` of `num_rows` remain: uniform over files and time."""
    every = max(1, -(-num_rows // limit))
    return frame.gather_every(every).collect()


def null_rules(columns: Sequence[str]) -> list[RowRule]:
    """A critical rule per column: no nulls."""
    return [
        RowRule(
            name=f"null_{column}",
            shows=column,
            bad=pl.col(column).is_null(),
            severity="critical",
            reason=f"{column} is part of every row's key or features",
        )
        for column in columns
    ]


def psi(today: pl.Series, before: pl.Series) -> float | None:
    """Population stability index of two samples; None when one is empty.

    Whole numbers of few values are compared value by value, ids in 16 bins by remainder, other
    numbers in 16 quantile bins of `before`.
    """
    if today.is_empty() or before.is_empty():
        return None
    if today.dtype.is_integer():
        few = all(s.n_unique() <= PSI_VALUES for s in (today, before))
        bins = [s if few else s % PSI_BINS for s in (today, before)]
    else:
        cuts = before.drop_nans().drop_nulls()
        edges = sorted({cuts.quantile(i / PSI_BINS) or 0.0 for i in range(1, PSI_BINS)})
        bins = [
            s.cast(pl.Float64).cut(edges, labels=[str(i) for i in range(len(edges) + 1)])
            for s in (today, before)
        ]
    return _divergence(*(b.cast(pl.String).value_counts(normalize=True) for b in bins))


def _divergence(today: pl.DataFrame, before: pl.DataFrame) -> float:
    name = today.columns[0]
    both = today.join(before.rename({before.columns[0]: name}), on=name, how="full", coalesce=True)
    new, old = (
        both[column].fill_null(0.0).clip(lower_bound=PSI_FLOOR)
        for column in ("proportion", "proportion_right")
    )
    return float(((new - old) * (new / old).log()).sum())
