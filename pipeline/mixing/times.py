"""Texts as times: the one list of forms that sources may write."""

from __future__ import annotations

from typing import Final

import polars as pl

TIME_FORMATS: Final = (
    "%Y-%m-%dT%H:%M:%S%.f%:z",
    "%Y-%m-%dT%H:%M:%S%.f",
    "%Y-%m-%dT%H:%M",
)


def text_us(texts: pl.Expr) -> pl.Expr:
    """Microseconds since 1970 UTC (int64) of texts, null where a text is no time.

    ISO 8601, UTC where no zone is named; a date alone is its midnight; a whole number is
    microseconds already.
    """
    plain = texts.str.strip_chars().str.replace(" ", "T", literal=True)
    plain = plain.str.replace(r"[Zz]$", "+00:00")
    plain = plain.str.replace(r"^(\d{4}-\d{2}-\d{2})$", "${1}T00:00")
    times = [
        plain.str.to_datetime(form, time_unit="us", strict=False).dt.epoch("us")
        for form in TIME_FORMATS
    ]
    return pl.coalesce(plain.cast(pl.Int64, strict=False), *times)
