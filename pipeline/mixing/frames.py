"""Parquet in and out: one writer with fixed settings, so that equal frames give equal bytes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

ROW_GROUP = 131_072


def write_frame(path: Path, frame: pl.DataFrame, schema: pa.Schema | None = None) -> None:
    """Write `frame` as Parquet; with `schema`, columns are chosen and cast to exactly that."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if schema is not None:
        frame = frame.select(schema.names)
    table = frame.to_arrow(compat_level=pl.CompatLevel.oldest())
    if schema is not None:
        table = table.cast(schema)
    # pyarrow rather than polars: its row groups do not depend on the number of threads
    pq.write_table(
        table.combine_chunks(), path, compression="zstd", row_group_size=ROW_GROUP, version="2.6"
    )


def write_selection(path: Path, frame: pl.DataFrame) -> None:
    """Write a frame of sorted positions and ids: deltas and lz4 cost a third of the usual form."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = frame.to_arrow(compat_level=pl.CompatLevel.oldest())
    wide = [f.name for f in table.schema if f.type == pa.int64()]
    pq.write_table(
        table.combine_chunks(),
        path,
        compression="lz4",
        use_dictionary=[n for n in table.schema.names if n not in wide],
        column_encoding=dict.fromkeys(wide, "DELTA_BINARY_PACKED"),
        write_statistics=False,
        row_group_size=ROW_GROUP,
        version="2.6",
    )


def read_frames(paths: Sequence[Path], columns: Sequence[str] | None = None) -> pl.DataFrame:
    """Read Parquet files one after the other, in the given order; at least one path."""
    wanted = list(columns) if columns is not None else None
    if len(paths) == 1:
        return pl.read_parquet(paths[0], columns=wanted, glob=False)
    lazy = pl.scan_parquet(list(paths), glob=False)
    return (lazy.select(wanted) if wanted is not None else lazy).collect()
