"""What a contract is made of: counted row rules and expectations, as plain data.

An `Expectation` names a Great Expectations class, so that suites read and test fast; the runner
alone imports Great Expectations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import polars as pl

Severity = Literal["critical", "warning"]
Level = Literal["profile", "sample"]


@dataclass(frozen=True, kw_only=True)
class RowRule:
    """A rule on every row: `bad` selects the rows that break it; `shows` is the column to show."""

    name: str
    shows: str
    bad: pl.Expr
    severity: Severity
    reason: str


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """One expectation: the GX class `kind` with `arguments`, on the profile or on the sample."""

    kind: str
    severity: Severity
    reason: str
    on: Level = "profile"
    arguments: dict[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Short name: level, class and column."""
        return f"{self.on}:{self.kind}({self.arguments.get('column', 'table')})"


def none_bad(rules: Sequence[RowRule]) -> list[Expectation]:
    """The profile's count of every row rule must be 0."""
    return [zero(rule.name, severity=rule.severity, reason=rule.reason) for rule in rules]


def zero(column: str, *, severity: Severity, reason: str) -> Expectation:
    """The profile's `column` counts bad rows: its largest value is 0 (a cheap check in GX)."""
    return Expectation(
        kind="ExpectColumnMaxToBeBetween",
        arguments={"column": column, "max_value": 0},
        severity=severity,
        reason=reason,
    )


def between(
    column: str,
    low: float | None,
    high: float | None,
    *,
    severity: Severity,
    reason: str,
    on: Level = "profile",
) -> Expectation:
    """Every value of `column` lies in [low, high]; nulls are passed over."""
    return Expectation(
        kind="ExpectColumnValuesToBeBetween",
        arguments={"column": column, "min_value": low, "max_value": high},
        severity=severity,
        reason=reason,
        on=on,
    )


def in_set(
    column: str, values: Sequence[object], *, severity: Severity, reason: str, on: Level
) -> Expectation:
    """Every value of `column` is one of `values`."""
    return Expectation(
        kind="ExpectColumnValuesToBeInSet",
        arguments={"column": column, "value_set": list(values)},
        severity=severity,
        reason=reason,
        on=on,
    )


def unique(column: str, *, severity: Severity, reason: str) -> Expectation:
    """No value of the sample's `column` comes twice."""
    return Expectation(
        kind="ExpectColumnValuesToBeUnique",
        arguments={"column": column},
        severity=severity,
        reason=reason,
        on="sample",
    )
