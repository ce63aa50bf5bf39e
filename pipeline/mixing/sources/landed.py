"""What an adapter of a public set hands over, and how it is put on disk by day."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from data_contracts.schema import TABLES
from pipeline.run.manifest import Manifest, Outcome, produce
from pipeline.run.window import DAY_US, day_of_us

TS = pl.Datetime("us", "UTC")


@dataclass(frozen=True, kw_only=True)
class Landed:
    """Canonical tables of a whole set, each with `ts`, in time order.

    `rows`: the set's own row count; `counts`: what turns it into the landed rows
    (e.g. sampled_negatives), so that landed impressions = rows + additions - omissions.
    """

    rows: int
    tables: dict[str, pl.DataFrame]
    counts: dict[str, int] = field(default_factory=dict)


def publish_table(
    folder: Path, table: str, frame: pl.DataFrame, inputs: dict[str, str]
) -> Manifest:
    """Write `folder/<table>/day=D/part-0.parquet` for every day; all days appear together."""
    leading = [name for name in TABLES[table].names if name in frame.columns]
    frame = frame.select(*leading, pl.exclude(leading))

    def build(target: Path) -> Outcome:
        by_day = frame.with_columns(_day=pl.col("ts").dt.epoch("us") // DAY_US)
        for (number,), part in by_day.partition_by(
            "_day", as_dict=True, include_key=False, maintain_order=True
        ).items():
            path = target / f"day={day_of_us(int(number) * DAY_US)}" / "part-0.parquet"
            path.parent.mkdir()
            part.write_parquet(path, compression="zstd")
        return Outcome(rows=frame.height)

    return produce(
        folder / table,
        stage="fetch",
        unit=table,
        inputs=inputs,
        settings={"columns": [f"{n}:{t}" for n, t in frame.schema.items()]},
        build=build,
    )


def id_of(text: str) -> int:
    """A positive 63-bit id of a text, the same everywhere."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
