"""Casts of foreign columns to canonical types: a value that does not fit becomes null.

Every cast keeps the length of its column. Nothing raises on bad data: the caller compares nulls
before and after, so that a bad value costs its row a reason and no other row anything. A column
that already fits is returned at once: sources of many small days spend their time here.
"""

from __future__ import annotations

import re
from collections.abc import Collection

import numpy as np
import polars as pl

from pipeline.mixing.hashing import hash_strings
from pipeline.mixing.times import text_us

MAX_TEXT_BYTES = 256
_EXACT_IN_FLOAT = float(2**53)
_INTEGER = re.compile("0|[1-9][0-9]{0,17}")


def to_integer(column: pl.Series) -> pl.Series:
    """Int64; whole floats and decimal strings count as integers, anything else becomes null."""
    kind = column.dtype
    if kind.is_integer() or kind == pl.Boolean:
        return column.cast(pl.Int64, strict=False)
    if kind.is_float():
        wide = column.cast(pl.Float64)
        whole = wide.is_finite() & (wide == wide.floor()) & (wide.abs() <= _EXACT_IN_FLOAT)
        return _where(wide, whole).cast(pl.Int64, strict=False)
    if _is_text(kind):
        return column.cast(pl.String).str.strip_chars().cast(pl.Int64, strict=False)
    return _nulls(column, pl.Int64())


def to_id(column: pl.Series) -> pl.Series:
    """Int64 of 0 or more, else null."""
    if column.dtype == pl.Int64 and _within(column, 0, None):
        return column
    values = to_integer(column)
    return _where(values, values >= 0)


def to_feature_id(column: pl.Series) -> pl.Series:
    """`to_id`, but strings that are no decimal number are hashed; oversized strings become null."""
    if not _is_text(column.dtype):
        return to_id(column)
    texts = column.cast(pl.String)
    short = [t for t in texts.unique() if t is not None and len(t.encode()) <= MAX_TEXT_BYTES]
    if not short:
        return _nulls(column, pl.Int64())
    ids = [int(t) if _INTEGER.fullmatch(t) else None for t in short]
    hashed = iter(hash_strings(t for t, i in zip(short, ids, strict=True) if i is None).tolist())
    values = [next(hashed) if i is None else i for i in ids]
    return texts.replace_strict(short, values, default=None, return_dtype=pl.Int64)


def to_time(column: pl.Series) -> pl.Series:
    """Datetime in microseconds UTC from times, ISO 8601 texts or whole numbers of microseconds.

    Times without a zone are UTC; a date alone is its midnight.
    """
    kind, utc = column.dtype, pl.Datetime("us", "UTC")
    if isinstance(kind, pl.Datetime):
        zoned = column if kind.time_zone else column.dt.replace_time_zone("UTC")
        return zoned.cast(pl.Datetime("us", kind.time_zone or "UTC")).dt.convert_time_zone("UTC")
    if kind == pl.Date:
        return column.cast(pl.Datetime("us")).dt.replace_time_zone("UTC")
    if kind.is_integer():
        return column.cast(pl.Int64, strict=False).cast(utc)
    if _is_text(kind):
        return _parse_times(column.cast(pl.String))
    return _nulls(column, utc)


def to_number(column: pl.Series, kind: pl.DataType) -> pl.Series:
    """A finite float of type `kind`, else null."""
    if column.dtype == kind and _finite(column):
        return column
    numeric = column.dtype.is_numeric() or column.dtype == pl.Boolean or _is_text(column.dtype)
    if not numeric:
        return _nulls(column, kind)
    values = column.cast(pl.String) if _is_text(column.dtype) else column
    values = values.cast(kind, strict=False)
    return _where(values, values.is_finite())


def to_range(column: pl.Series, low: int, high: int, kind: pl.DataType) -> pl.Series:
    """An integer in [low, high] of type `kind`, else null."""
    if column.dtype.is_integer() and _within(column, low, high):
        return column.cast(kind)
    values = to_integer(column)
    return _where(values, values.is_between(low, high)).cast(kind)


def to_text(column: pl.Series, allowed: Collection[str] | None) -> pl.Series:
    """A text of at most `MAX_TEXT_BYTES`, or one of `allowed` (as an Enum), else null."""
    kind = pl.Enum(list(allowed)) if allowed is not None else pl.String()
    if not (_is_text(column.dtype) or column.dtype.is_integer()):
        return _nulls(column, kind)
    values = column.cast(pl.String)
    if allowed is not None:
        return values.cast(kind, strict=False)
    if not len(values) or int(values.str.len_bytes().max() or 0) <= MAX_TEXT_BYTES:  # type: ignore[arg-type]
        return values
    return _where(values, values.str.len_bytes() <= MAX_TEXT_BYTES)


def _parse_times(texts: pl.Series) -> pl.Series:
    parsed = pl.select(text_us(pl.lit(texts.alias("")))).to_series().alias(texts.name)
    return parsed.cast(pl.Datetime("us", "UTC"))


def _within(column: pl.Series, low: int, high: int | None) -> bool:
    if not len(column) or column.null_count():
        return not len(column)
    least, most = int(column.min()), int(column.max())  # type: ignore[arg-type]
    return least >= low and (high is None or most <= high)


def _finite(column: pl.Series) -> bool:
    return not column.null_count() and bool(np.isfinite(column.to_numpy()).all())


def _is_text(kind: pl.DataType) -> bool:
    return kind == pl.String or isinstance(kind, (pl.Categorical, pl.Enum))


def _where(values: pl.Series, mask: pl.Series) -> pl.Series:
    return values.set(~mask.fill_null(False), None)


def _nulls(column: pl.Series, kind: pl.DataType) -> pl.Series:
    return pl.Series(column.name, [None], dtype=kind).new_from_index(0, len(column))
