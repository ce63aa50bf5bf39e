"""Reads a source's files into frames: paths by day, Hive folders, CSV, columns by SQL expressions.

Nothing is cast here: a frame holds what the files hold (CSV: strings), and ingest casts it and
quarantines what does not fit. Each file is read on its own, so that a broken one fails alone.
"""

from __future__ import annotations

import dataclasses
import glob
import gzip
import json
import zlib
from pathlib import Path

import polars as pl

from data_contracts.schema import TABLES, canonical
from pipeline.mixing.sources.stores import (
    StoredObject,
    fetch,
    is_remote,
    listed,
    located,
    parsed,
)
from pipeline.mixing.times import text_us
from pipeline.run.config import TableMapping
from pipeline.run.errors import ConfigError, DataError
from pipeline.run.paths import Run
from pipeline.run.window import DAY_US, day_begin_us

SUFFIXES = {
    "parquet": (".parquet", ".parquet.brotli", ".pq"),
    "csv": (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".txt", ".txt.gz"),
}
VALUE_ERRORS = (pl.exceptions.InvalidOperationError, pl.exceptions.ComputeError)
MOST_BAD_VALUES = 1_000  # of one expression in one file; a file with more is broken
BROKEN = (pl.exceptions.PolarsError, OSError, EOFError, zlib.error, gzip.BadGzipFile)


def mapping_of(run: Run, table: str) -> TableMapping | None:
    """The mapping of a canonical table, or None when the source does not have that table."""
    if table not in TABLES:
        raise ConfigError(f"table must be one of {sorted(TABLES)}, got {table!r}; choose one")
    return next((m for m in run.config.source.tables if m.table == table), None)


def files_of(run: Run, mapping: TableMapping, day: str) -> list[Path]:
    """The files that hold a table's day, sorted; relative paths start at the home folder.

    A folder stands for all files of the mapping's format below it, whatever the depth; names
    that begin with "." or "_" are left out. Of s3:// and gs:// these are the copies of what stage
    land found: `DataError` before it ran.
    """
    if is_remote(mapping.path):
        return fetch(run.home, _pinned(run, mapping.table, day))
    pattern = mapping.path.replace("{landing}", str(run.landing())).replace("{day}", day)
    path = run.home / pattern
    if path.is_dir():
        found = [p for p in path.rglob("*") if p.name.endswith(SUFFIXES[mapping.format])]
    elif path.is_file():
        return [path]
    else:
        found = [Path(name) for name in glob.glob(str(path), recursive=True)]
        found = [p for f in found for p in (f.rglob("*") if f.is_dir() else [f])]
        found = [p for p in found if p.is_file()]
    return sorted(p for p in found if p.is_file() and not p.name.startswith((".", "_")))


def stored_objects(mapping: TableMapping, day: str) -> list[StoredObject]:
    """The objects that hold a table's day in an s3:// or gs:// path, as listed now."""
    where = located(mapping.path.replace("{day}", day))
    return listed(where, SUFFIXES[mapping.format])


def object_entry(item: StoredObject) -> dict[str, str | int]:
    """An object as stage land records it."""
    return {"path": str(item.location), "bytes": item.bytes, "mark": item.mark}


def _pinned(run: Run, table: str, day: str) -> list[StoredObject]:
    """What land recorded of a table's day, so that every stage of a run reads the same objects."""
    path = run.output("land") / "index.json"
    try:
        days = json.loads(path.read_text())["days"]
    except FileNotFoundError:
        raise DataError(
            f"{path} is missing: stage land lists the objects of source "
            f"{run.config.source.name}; run it first"
        ) from None
    entries = days.get(day, {}).get(table, [])
    return [
        StoredObject(location=parsed(e["path"]), bytes=e["bytes"], mark=e["mark"]) for e in entries
    ]


def canonical_columns(run: Run, table: str) -> list[str]:
    """Columns that a table is read for: its canonical ones, and the features of impressions."""
    features = run.config.features
    sparse, dense = (tuple(f.name for f in fs) for fs in (features.sparse, features.dense))
    return list(dict.fromkeys(canonical(table, sparse, dense).names))


def file_columns(mapping: TableMapping, path: Path) -> dict[str, str]:
    """The file's own columns and their types, Hive folders included; raises one of `BROKEN`."""
    return {n: str(t) for n, t in _raw(mapping, path).collect_schema().items()}


def scan_file(mapping: TableMapping, path: Path, wanted: list[str], day: str) -> pl.LazyFrame:
    """A day's rows of one file, lazily; a value that an expression cannot take fails the query."""
    return _mapped(mapping, _raw(mapping, path), wanted, day)


def read_file(mapping: TableMapping, path: Path, wanted: list[str], day: str) -> pl.DataFrame:
    """A day's rows of one file, with null where an expression fails; raises one of `BROKEN`."""
    raw = _raw(mapping, path)
    try:
        return _mapped(mapping, raw, wanted, day).collect()
    except VALUE_ERRORS:
        if not mapping.columns:
            raise
        return _mapped_value_by_value(mapping, raw.collect(), wanted, day)


def _mapped_value_by_value(
    mapping: TableMapping, raw: pl.DataFrame, wanted: list[str], day: str
) -> pl.DataFrame:
    """As `_mapped`, with null where an expression fails on a row."""
    computed = [
        _salvage(raw, expression.alias(name), [MOST_BAD_VALUES]).to_series()
        for name, expression in _expressions(mapping, raw.columns, wanted).items()
    ]
    names = tuple((s.name, s.name) for s in computed)
    plain = dataclasses.replace(mapping, columns=names)
    return _mapped(plain, raw.with_columns(computed).lazy(), wanted, day).collect()


def _salvage(rows: pl.DataFrame, expression: pl.Expr, left: list[int]) -> pl.DataFrame:
    """One column; halves what fails until single rows are left. `left[0]` more may fail."""
    try:
        return rows.with_columns(expression).select(expression.meta.output_name())
    except VALUE_ERRORS:
        if rows.height > 1:
            half = rows.height // 2
            parts = [rows.head(half), rows.tail(rows.height - half)]
            halves = [_salvage(part, expression, left) for part in parts]
            return pl.concat(halves, how="vertical_relaxed")
        left[0] -= 1
        if left[0] < 0:
            raise
        return pl.DataFrame({expression.meta.output_name(): [None]})


def _mapped(
    mapping: TableMapping, frame: pl.LazyFrame, wanted: list[str], day: str
) -> pl.LazyFrame:
    """One file's canonical columns: mapped ones computed, others under their own names."""
    present = frame.collect_schema().names()
    expressions = _expressions(mapping, present, wanted)
    kept = [n for n in wanted if n in present and n not in expressions]
    # with_columns first: a mapping of constants alone must still have one row per row
    frame = frame.with_columns(e.alias(n) for n, e in expressions.items())
    frame = frame.select(*kept, *expressions)
    return frame if "{day}" in mapping.path else frame.filter(_on_day(frame, day))


def _raw(mapping: TableMapping, path: Path) -> pl.LazyFrame:
    """The file's own columns, and those that Hive folders name (k=v) unless the file has them."""
    if mapping.format == "csv":
        separator = "\t" if ".tsv" in path.name else ","
        frame = pl.scan_csv(path, separator=separator, infer_schema=False)
    else:
        frame = pl.scan_parquet(path, hive_partitioning=False)
    present = frame.collect_schema().names()
    folders = dict(part.split("=", 1) for part in path.parts[:-1] if "=" in part)
    return frame.with_columns(
        pl.lit(value).alias(name) for name, value in folders.items() if name not in present
    )


def _expressions(
    mapping: TableMapping, present: list[str], wanted: list[str]
) -> dict[str, pl.Expr]:
    """The mapping's expressions; a text that is just a column's name is that column."""
    expressions = {}
    for name, text in mapping.columns:
        field = f"source.tables.{mapping.table}.columns.{name}"
        if name not in wanted:
            raise ConfigError(
                f"{field} is no canonical column or declared feature; choose among {wanted}"
            )
        try:
            expressions[name] = pl.col(text) if text in present else pl.sql_expr(text)
        except pl.exceptions.PolarsError as error:
            raise ConfigError(
                f"{field} must be a polars SQL expression, got {text!r} ({error}); "
                "write e.g. TRY_CAST(x AS BIGINT), and columns that SQL knows as words in quotes"
            ) from None
    return expressions


def _on_day(frame: pl.LazyFrame, day: str) -> pl.Expr:
    """Rows of a day; rows without a readable time go with the file's earliest day."""
    kind = frame.collect_schema().get("ts")
    if kind is None:
        return pl.lit(True)
    if kind == pl.String:
        ts = text_us(pl.col("ts"))
    elif kind.is_temporal():
        ts = pl.col("ts").cast(pl.Datetime("us")).dt.epoch("us")
    else:
        ts = pl.col("ts").cast(pl.Int64, strict=False)
    number = ts // DAY_US
    return number.fill_null(number.min()) == day_begin_us(day) // DAY_US
