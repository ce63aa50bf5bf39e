"""Columns by way of files: in steps and whole, with and without rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from pipeline.mixing.frames import (
    ROW_GROUP,
    arrow_column,
    iter_columns,
    read_columns,
    write_frame,
    write_pointers,
    write_selection,
)


def table(count: int) -> pl.DataFrame:
    rng = np.random.default_rng(count)
    return pl.DataFrame(
        {
            "g": np.arange(count),
            "y": rng.integers(0, 2, count).astype(np.int8),
            "m": rng.random(count) < 0.5,
            "w": rng.random(count).astype(np.float32),
            "day": pl.Series(["a", "b"] * (count // 2) + ["a"] * (count % 2), dtype=pl.String),
        }
    )


@pytest.mark.parametrize("count", [0, 7, ROW_GROUP, ROW_GROUP + 5])
def test_columns_come_as_they_were_written(tmp_path: Path, count: int) -> None:
    frame = table(count)
    for write in (write_selection, write_frame):
        path = tmp_path / f"{write.__name__}.parquet"
        write(path, frame)
        assert pl.read_parquet(path).equals(frame)
        found = list(iter_columns(path, ["g", "m"]))
        assert [len(c["g"]) for c in found] == ([ROW_GROUP] if count >= ROW_GROUP else []) + (
            [count % ROW_GROUP] if count != ROW_GROUP else []
        )
        twice = read_columns([path, path], ["w", "y", "m"], 2 * count)
        assert {n: v.dtype for n, v in twice.items()} == {"w": "f4", "y": "i1", "m": "?"}
        for name, values in twice.items():
            assert np.array_equal(values, np.tile(frame[name].to_numpy(), 2))


def test_tables_in_parts_are_the_frame(tmp_path: Path) -> None:
    frame = table(ROW_GROUP + 5)
    names = pl.Series(["a", "b"]).to_arrow(compat_level=pl.CompatLevel.oldest())

    def part(rows: pl.DataFrame) -> pa.Table:
        columns = {n: arrow_column(rows[n].to_numpy()) for n in ("g", "y", "m", "w")}
        codes = arrow_column((rows["day"] == "b").to_numpy().astype(np.int16))
        return pa.table(columns | {"day": pa.DictionaryArray.from_arrays(codes, names)})

    path = tmp_path / "parts.parquet"
    write_pointers(path, map(part, (frame[:ROW_GROUP], frame[ROW_GROUP:])))
    assert pl.read_parquet(path).equals(frame)
