"""One pass over a day of a table: good rows into bucket files, rejected ones beside them.

All surfaces are served by the same pass, part by part, so that memory does not grow with the day.
Row groups are cut by count, so that the bytes depend neither on the parts nor on threads.
"""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl

from pipeline.mixing.canonical import REST, bucket_file
from pipeline.mixing.cleaning import Cleaned, Cleaner, repeated_ids, rules_of
from pipeline.mixing.frames import RowGroups, read_frames, write_frame
from pipeline.mixing.hashing import bucket_of
from pipeline.mixing.parts import DayParts, StartOverError
from pipeline.mixing.quarantine import REJECTED
from pipeline.run.config import RunConfig


@dataclass(kw_only=True)
class UnitRows:
    """What one unit got of a day: rows that came, good ones per bucket, rejected ones by reason."""

    bucket_rows: list[int]
    rows_in: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    duplicates: int = 0

    @property
    def rows_out(self) -> int:
        """Good rows."""
        return sum(self.bucket_rows)

    @property
    def rejected(self) -> int:
        """Rejected rows, duplicates included."""
        return sum(self.reasons.values())


@dataclass(frozen=True, kw_only=True)
class DaySplit:
    """The result of a pass, by unit: a surface's name, or "rest" for what lies on none."""

    units: dict[str, UnitRows]
    table_rows: int
    defaulted: tuple[str, ...]


def split_day(config: RunConfig, parts: DayParts, table: str, day: str, folder: Path) -> DaySplit:
    """Fill folder/<unit>/ with bucket files and, where rows were refused, rejected.parquet.

    Impressions go to their surface's unit, other tables to "rest". Files are in time order.
    """
    while True:
        shutil.rmtree(folder, ignore_errors=True)
        try:
            return _Pass(config, table, day, folder).over(parts)
        except StartOverError:
            continue  # `parts` now leaves the broken file out


class _Pass:
    def __init__(self, config: RunConfig, table: str, day: str, folder: Path) -> None:
        self.table, self.day, self.folder = table, day, folder
        self.rules = rules_of(config, table)
        self.num_buckets = config.window.num_buckets
        shown = table == "impressions"
        self.homes = config.surfaces if shown else (REST,)
        self.files = [
            RowGroups(bucket_file(folder / home, bucket), self.rules.schema)
            for home in self.homes
            for bucket in range(self.num_buckets)
        ]
        self.refused: dict[str, RowGroups] = {}
        units = {*self.homes, REST}
        self.units = {u: UnitRows(bucket_rows=[]) for u in sorted(units)}
        self.rows, self.last_us, self.ordered = 0, 0, True

    def over(self, parts: DayParts) -> DaySplit:
        repeated = None
        if self.table == "impressions":
            repeated = repeated_ids(parts.parts(["impression_id"]))
        cleaner = None
        for frame in parts.parts():
            if not len(frame):
                continue
            cleaner = cleaner or Cleaner(self.rules, self.day, parts.columns, repeated)
            self.rows += len(frame)
            cleaned = cleaner.part(frame)
            for unit, came in zip((*self.homes, REST), cleaned.came, strict=False):
                self.units[unit].rows_in += int(came)
            self._keep(cleaned.frame)
            self._refuse(cleaned)
        self._close()
        return DaySplit(
            units=self.units,
            table_rows=self.rows,
            defaulted=cleaner.defaulted if cleaner else (),
        )

    def _keep(self, frame: pl.DataFrame) -> None:
        if not len(frame):
            return
        ts = frame["ts"].to_physical()
        first, self.last_us, before = int(ts[0]), int(ts[-1]), self.last_us
        self.ordered = self.ordered and first >= before and ts.is_sorted()
        group = bucket_of(frame["user_id"].to_numpy(), self.num_buckets)
        if len(self.homes) > 1:
            surface = frame["surface"].to_physical().to_numpy()
            group = surface.astype(np.int64) * self.num_buckets + group
        narrow = np.uint16 if len(self.files) <= 2**16 else np.uint32
        order = np.argsort(group.astype(narrow), kind="stable")  # 16 bits: a radix sort
        ends = np.cumsum(np.bincount(group, minlength=len(self.files)))
        frame = frame.rechunk()  # or every column would be put together for every file
        for file, begin, end in zip(self.files, [0, *ends[:-1]], ends, strict=True):
            if end > begin:
                file.add(frame[order[begin:end]])

    def _refuse(self, cleaned: Cleaned) -> None:
        rejected = cleaned.rejected
        if not len(rejected):
            return
        home = pl.col("surface").fill_null(REST) if self.table == "impressions" else pl.lit(REST)
        for (unit,), rows in rejected.group_by(home.alias("unit"), maintain_order=True):
            name = str(unit)
            counted = self.units[name]
            counted.reasons.update(rows["reason"].to_list())
            counted.duplicates += int(rows["duplicate"].sum())
            if name not in self.refused:
                self.refused[name] = RowGroups(self.folder / name / REJECTED)
            self.refused[name].add(rows.select("reason", "row"))

    def _close(self) -> None:
        empty = pl.DataFrame(schema=pl.Schema(self.rules.schema))
        for file in (*self.files, *self.refused.values()):
            if not file.rows:
                file.add(empty)
            file.close()
        if not self.ordered:
            for file in self.files:
                self._sort(file.path)
        for place, home in enumerate(self.homes):
            mine = self.files[place * self.num_buckets : (place + 1) * self.num_buckets]
            self.units[home].bucket_rows = [f.rows for f in mine]

    def _sort(self, path: Path) -> None:
        frame = read_frames([path])
        if not frame["ts"].is_sorted():
            # known words as Enum, as they came: a dictionary made anew would be other bytes
            words = [
                pl.col(n).cast(pl.Enum(t))
                for n, t in self.rules.texts.items()
                if t and n in frame.columns
            ]
            frame = frame.with_columns(words).sort("ts", maintain_order=True)
            write_frame(path, frame, self.rules.schema)
