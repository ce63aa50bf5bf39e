"""Parquet in and out: one writer with fixed settings, so that equal rows give equal bytes.

Settings by measurement: integers as packed differences, words by dictionary, lz4. That costs a
fifth of the processor time of zstd over dictionaries of everything, and the files are smaller.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

ROW_GROUP = 131_072
_WIDE_STEP = 1 << 40  # neighbours further apart are hashes, which differences do not shrink
_WORD = pa.dictionary(pa.int32(), pa.string())


class RowGroups:
    """A Parquet file written from frames of any size; row groups always hold `ROW_GROUP` rows.

    With `schema`, columns are chosen and cast to exactly that. The bytes depend on the rows alone,
    not on how they were cut into frames. At least one frame must be added, with or without rows.
    """

    def __init__(self, path: Path, schema: pa.Schema | None = None) -> None:
        self.path, self.schema, self.rows = path, schema, 0
        self._waiting: list[pl.DataFrame] = []
        self._num_waiting = 0
        self._writer: pq.ParquetWriter | None = None

    def add(self, frame: pl.DataFrame) -> None:
        """Append rows; writes whenever a row group is full."""
        self.rows += len(frame)
        self._num_waiting += len(frame)
        self._waiting.append(frame)
        if self._num_waiting >= ROW_GROUP:
            rest = pl.concat(self._waiting, rechunk=True)
            while len(rest) >= ROW_GROUP:
                self._write(rest[:ROW_GROUP])
                rest = rest[ROW_GROUP:]
            self._waiting, self._num_waiting = [rest], len(rest)

    def close(self) -> None:
        """Write what waits; a file without rows still has its columns."""
        if self._num_waiting or self._writer is None:
            self._write(pl.concat(self._waiting, rechunk=True))
        self._waiting = []
        if self._writer is not None:
            self._writer.close()

    def _write(self, frame: pl.DataFrame) -> None:
        table = _table(frame, self.schema)
        if self._writer is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # pyarrow rather than polars: its row groups do not depend on the number of threads
            self._writer = pq.ParquetWriter(
                self.path,
                table.schema,
                compression="lz4",
                version="2.6",
                store_schema=self.schema is None,  # a canonical file needs no hints of Arrow
                **_encodings(table),
            )
        self._writer.write_table(table, row_group_size=ROW_GROUP)


def write_frame(path: Path, frame: pl.DataFrame, schema: pa.Schema | None = None) -> None:
    """Write `frame` as Parquet; with `schema`, columns are chosen and cast to exactly that."""
    file = RowGroups(path, schema)
    file.add(frame)
    file.close()


def write_selection(path: Path, frame: pl.DataFrame) -> None:
    """Write a frame of sorted positions and ids as `write_pointers` does."""
    table = frame.to_arrow(compat_level=pl.CompatLevel.oldest())
    write_pointers(path, [table.combine_chunks()])


def write_pointers(path: Path, tables: Iterable[pa.Table]) -> None:
    """Write sorted positions and ids, tables of `ROW_GROUP` rows each but for the last.

    Packed differences are left as they are: lz4 would double their cost for a tenth of the size.
    At least one table must come, with or without rows.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    waiting = iter(tables)
    first = next(waiting)
    schema = pa.schema([f.with_nullable(False) for f in first.schema])  # no level to decode
    wide = [f.name for f in first.schema if f.type == pa.int64()]
    writer = pq.ParquetWriter(
        path,
        schema,
        compression={n: "none" if n in wide else "lz4" for n in first.schema.names},
        use_dictionary=[f.name for f in first.schema if _is_word(f.type)],
        column_encoding=dict.fromkeys(wide, "DELTA_BINARY_PACKED"),
        write_statistics=False,
        store_schema=False,  # words are read as words, dictionary or not
        version="2.6",
    )
    with writer:
        for table in chain([first], waiting):
            writer.write_table(table.cast(schema), row_group_size=ROW_GROUP)


def read_frames(paths: Sequence[Path], columns: Sequence[str] | None = None) -> pl.DataFrame:
    """Read Parquet files one after the other, in the given order; at least one path."""
    wanted = list(columns) if columns is not None else None
    if len(paths) == 1:
        return pl.read_parquet(paths[0], columns=wanted, glob=False)
    lazy = pl.scan_parquet(list(paths), glob=False)
    return (lazy.select(wanted) if wanted is not None else lazy).collect()


def iter_columns(path: Path, columns: Sequence[str]) -> Iterator[dict[str, NDArray[Any]]]:
    """Columns without nulls of a Parquet file, `ROW_GROUP` rows at a time but for the last.

    A file without rows gives its columns once.
    """
    with pq.ParquetFile(path) as file:
        found: Iterator[Any] = file.iter_batches(ROW_GROUP, columns=columns, use_threads=False)
        if not file.metadata.num_rows:
            found = iter([file.schema_arrow.empty_table().select(columns)])
        for batch in found:
            # by way of polars: Arrow's own way to numpy imports pandas, which takes a second
            frame = pl.DataFrame(pl.from_arrow(batch))
            yield {s.name: s.to_numpy() for s in frame.get_columns()}


def read_columns(
    paths: Sequence[Path], columns: Sequence[str], num_rows: int
) -> dict[str, NDArray[Any]]:
    """Columns without nulls of Parquet files with `num_rows` rows in all, one after the other.

    They are decoded in small memory that stays, which costs half of decoding them whole.
    """
    found: dict[str, NDArray[Any]] = {}
    begin = 0
    for rows in chain.from_iterable(iter_columns(path, columns) for path in paths):
        found = found or {n: np.empty(num_rows, v.dtype) for n, v in rows.items()}
        end = begin + len(rows[columns[0]])
        for name, values in rows.items():
            found[name][begin:end] = values
        begin = end
    return found


def arrow_column(values: NDArray[Any]) -> pa.Array:
    """A column in numpy's memory, or the bits of a mask; again without pandas."""
    data = np.packbits(values, bitorder="little") if values.dtype == bool else values
    kind = pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(data)])


def _table(frame: pl.DataFrame, schema: pa.Schema | None) -> pa.Table:
    if schema is not None:
        frame = frame.select(schema.names)
    table = frame.to_arrow(compat_level=pl.CompatLevel.oldest())
    if schema is not None:
        words = {n for n in schema.names if pa.types.is_dictionary(table.schema.field(n).type)}
        table = table.cast(
            pa.schema([f.with_type(_WORD) if f.name in words else f for f in schema])
        )
    return table.combine_chunks()


def _encodings(table: pa.Table) -> dict[str, object]:
    """Encodings by what the first row group holds."""
    packed: list[str] = []
    words: list[str] = []
    for field in table.schema:
        kind = field.type
        if pa.types.is_int64(kind):
            (packed if _is_close(table[field.name]) else words).append(field.name)
        elif pa.types.is_signed_integer(kind) or pa.types.is_timestamp(kind):
            packed.append(field.name)
        elif _is_word(kind):
            words.append(field.name)
    return {
        "use_dictionary": words,
        # bounds of words cost as much as the words, and nobody looks for a range of them
        "write_statistics": [n for n in table.schema.names if n not in words],
        "column_encoding": dict.fromkeys(packed, "DELTA_BINARY_PACKED"),
    }


def _is_word(kind: pa.DataType) -> bool:
    return pa.types.is_dictionary(kind) or kind in (pa.string(), pa.large_string())


def _is_close(column: pa.ChunkedArray) -> bool:
    """Whether neighbours are near enough for differences; decided on the first rows."""
    if column.null_count or not len(column):
        return not column.null_count
    some = column.chunk(0).slice(0, 1024).to_numpy().astype(np.float64)
    return not bool((np.abs(np.diff(some)) >= _WIDE_STEP).any())
