"""Columns of canonical files as numpy arrays, and the events that a bucket's files hold.

pyarrow reads such narrow files in half the time that polars takes, and words as codes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.mixing.canonical import Partition, bucket_file, surface_column
from pipeline.mixing.sequences import SOURCE_COLUMNS, Sequences, build_sequences
from pipeline.run.errors import DataError


def event_sequences(
    source: str,
    parts: Sequence[Partition],
    bucket: int,
    surfaces: tuple[str, ...],
    kinds: tuple[str, ...] = (),
) -> Sequences:
    """The events of a bucket in partitions of `source`; an unknown surface comes after the last.

    With `kinds` the action of an engagement is the place of its kind among them, else it is 1.
    """
    shown = source == "impressions"
    item = "ad_id" if shown else "item_id"
    own = ["click"] if shown else ["surface", *(["kind"] if kinds else [])]
    table = read_table(parts, bucket, ["user_id", "ts", item, "category_id", *own])
    found = {
        "ts_us": integers(table["ts"]),
        item: integers(table[item]),
        "category_id": integers(table["category_id"]),
        "surface": surface_column(parts, bucket) if shown else _places(table["surface"], surfaces),
        "action": integers(table["click"]) if shown else _actions(table, kinds),
    }
    columns = {name: found[name] for name in SOURCE_COLUMNS[source]}
    return build_sequences(integers(table["user_id"]), columns)


def read_table(parts: Sequence[Partition], bucket: int, columns: Sequence[str]) -> pa.Table:
    """Columns of one bucket over partitions, in their order."""
    filled = [p for p in parts if p.bucket_rows[bucket]] or list(parts[:1])
    if not filled:
        raise DataError("no canonical partition to read; run the ingest stage first")
    return read_columns([bucket_file(p.folder, bucket) for p in filled], columns)


def read_columns(paths: Sequence[Path], columns: Sequence[str]) -> pa.Table:
    """Columns of Parquet files, one after the other; words as dictionaries."""
    words = [c for c in columns if c in ("surface", "kind")]
    files = (
        pq.ParquetFile(p, memory_map=True, pre_buffer=False, read_dictionary=words) for p in paths
    )
    return pa.concat_tables([f.read(list(columns), use_threads=False) for f in files])


def integers(column: pa.ChunkedArray) -> np.ndarray:
    """An integer column without nulls; times as microseconds UTC."""
    # from_dlpack and not to_numpy, which imports pandas: half a second
    chunks = [np.from_dlpack(_numbers(c)) for c in column.chunks if len(c)]
    if len(chunks) == 1:
        return chunks[0]
    return np.concatenate(chunks) if chunks else np.zeros(0, dtype=np.int64)


def _numbers(chunk: pa.Array) -> pa.Array:
    return chunk.view(pa.int64()) if pa.types.is_timestamp(chunk.type) else chunk


def _actions(table: pa.Table, kinds: tuple[str, ...]) -> np.ndarray:
    if not kinds:
        return np.ones(len(table), dtype=np.int8)
    return _places(table["kind"], kinds).astype(np.int8)


def _places(words: pa.ChunkedArray, known: tuple[str, ...]) -> np.ndarray:
    """Index into the known ones of a column of words, int16; any other is after the last."""
    index = {name: place for place, name in enumerate(known)}
    found = [np.zeros(0, dtype=np.int16)]
    for chunk in words.chunks:
        places = [index.get(word, len(known)) for word in chunk.dictionary.to_pylist()]
        found.append(np.array(places, dtype=np.int16)[np.from_dlpack(chunk.indices)])
    return np.concatenate(found)
