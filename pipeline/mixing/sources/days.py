"""Writes rows that come in any order into one Parquet file per day, without holding a day."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.run.window import DAY_US, day_begin_us, day_of_us


class DayWriter:
    """`folder/<table>/day=D/part-0.parquet` for every day that gets rows.

    Rows without a time, or outside [first_day, last_day], go to the first day: ingest refuses
    them there with a reason, and no row is lost. `rows` and `by_day` count what was written.
    """

    def __init__(self, folder: Path, table: str, first_day: str, last_day: str) -> None:
        self.rows = 0
        self.by_day: dict[str, int] = {}
        self.misdated = 0
        self._folder = folder / table
        self._first = day_begin_us(first_day) // DAY_US
        self._last = day_begin_us(last_day) // DAY_US
        self._open: dict[int, pq.ParquetWriter] = {}

    def __enter__(self) -> DayWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for writer in self._open.values():
            writer.close()

    def write(self, frame: pl.DataFrame) -> None:
        """Append rows; `ts` is a column, and all frames of a writer have the same columns."""
        number = pl.col("ts").dt.epoch("us") // DAY_US
        inside = number.is_between(self._first, self._last).fill_null(False)
        frame = frame.with_columns(
            _inside=inside, _day=pl.when(inside).then(number).otherwise(self._first)
        )
        self.misdated += int((~frame["_inside"]).sum())
        parts = frame.drop("_inside").partition_by(
            "_day", as_dict=True, include_key=False, maintain_order=True
        )
        for (day,), part in sorted(parts.items()):
            self._append(int(day), part)
        self.rows += frame.height

    def _append(self, day: int, part: pl.DataFrame) -> None:
        name = day_of_us(day * DAY_US)
        table = part.to_arrow()
        if day not in self._open:
            path = self._folder / f"day={name}" / "part-0.parquet"
            path.parent.mkdir(parents=True)
            texts = [f.name for f in table.schema if pa.types.is_large_string(f.type)]
            self._open[day] = pq.ParquetWriter(
                path, table.schema, compression="zstd", compression_level=1, use_dictionary=texts
            )
        self._open[day].write_table(table)
        self.by_day[name] = self.by_day.get(name, 0) + part.height
