"""Labels: clicks and the conversions that joined in time, with the moment each label is known.

A conversion belongs to the latest impression of the same id and user at or before it, when it
arrived within the objective's window: impression <= conversion < impression + window. The label is
known, positive or not, when that window closes, and mature when it closed by the end of the day.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import polars as pl

from model.config import Objective
from pipeline.mixing.canonical import (
    REST,
    Partition,
    bucket_file,
    partitions,
    read_bucket,
    window_impressions,
)
from pipeline.mixing.frames import write_frame
from pipeline.run.errors import ConfigError
from pipeline.run.manifest import Manifest, Outcome, need_manifest, produce
from pipeline.run.paths import Run
from pipeline.run.window import HOUR_US, window_of


def ingested(run: Run) -> dict[str, str]:
    """Fingerprints of the run's ingest outputs, by unit."""
    units = (*run.config.surfaces, REST)
    return {f"ingest/{u}": need_manifest(run.output("ingest", u)).fingerprint for u in units}


def labels(run: Run, unit: str = "") -> Manifest:
    """Publish a label table per bucket: g, impression_id, ts_us, y_, known_, mature_ columns."""
    window = window_of(run.config)
    for objective in run.config.objectives:
        if (objective.window_hours == 0) != (objective.name == "click"):
            raise ConfigError(
                f"objectives.{objective.name}.window_hours must be 0 for click and above 0 for "
                f"conversions, got {objective.window_hours}; set it"
            )

    def build(temporary: Path) -> Outcome:
        shown = window_impressions(run)
        bought = partitions(run, "conversions", window.days)
        figures: Counter[str] = Counter()
        rows = 0
        for bucket in range(run.config.window.num_buckets):
            frame, counted = label_bucket(run, shown, bought, bucket)
            write_frame(bucket_file(temporary, bucket), frame)
            figures.update(counted)
            rows += len(frame)
        return Outcome(rows=rows, figures=dict(figures))

    return produce(
        run.output("labels"),
        stage="labels",
        unit=unit,
        inputs=ingested(run),
        settings=[run.config.objectives, window.days, window.day_end],
        build=build,
    )


def label_bucket(
    run: Run, shown: list[Partition], bought: list[Partition], bucket: int
) -> tuple[pl.DataFrame, Counter[str]]:
    """Labels of one bucket in canonical order, and counts of conversions by where they went."""
    rows = read_bucket(shown, bucket, ["impression_id", "user_id", "ts", "click"])
    rows = rows.with_columns(pl.col("ts").dt.epoch("us").alias("ts_us")).with_row_index("g")
    rows = rows.with_columns(pl.col("g").cast(pl.Int64))
    came = _conversions(bought, bucket)
    joined = _joined(rows, came)
    figures = _figures(run.config.objectives, joined)
    table = rows.select("g", "impression_id", "ts_us")
    for objective in run.config.objectives:
        y = (
            rows["click"].to_numpy()
            if objective.name == "click"
            else _positives(rows, joined, objective)
        )
        known = rows["ts_us"].to_numpy() + objective.window_hours * HOUR_US
        mature = known <= window_of(run.config).day_end
        name = objective.name
        table = table.with_columns(
            pl.Series(f"y_{name}", y, dtype=pl.Int8),
            pl.Series(f"known_{name}", known, dtype=pl.Int64),
            pl.Series(f"mature_{name}", mature, dtype=pl.Boolean),
        )
        figures[f"{name}_mature"] = int(mature.sum())
        figures[f"{name}_immature"] = int((~mature).sum())
        figures[f"{name}_positive"] = int(y[mature].sum())
    return table, figures


def _conversions(bought: list[Partition], bucket: int) -> pl.DataFrame:
    if not bought:
        kinds = {"impression_id": pl.Int64, "user_id": pl.Int64, "kind": pl.String, "at": pl.Int64}
        return pl.DataFrame(schema=kinds)
    frame = read_bucket(bought, bucket, ["impression_id", "user_id", "kind", "ts"])
    return frame.with_columns(pl.col("ts").dt.epoch("us").alias("at")).drop("ts")


def _joined(rows: pl.DataFrame, came: pl.DataFrame) -> pl.DataFrame:
    """Every conversion with g and ts_us of its impression; null where there is none."""
    keys = ["impression_id", "user_id"]
    return came.sort("at", maintain_order=True).join_asof(
        rows.select(*keys, "g", "ts_us").sort("ts_us", maintain_order=True),
        left_on="at",
        right_on="ts_us",
        by=keys,
        strategy="backward",
        coalesce=False,
        check_sortedness=False,
    )


def _in_time(objective: Objective) -> pl.Expr:
    return pl.col("at") < pl.col("ts_us") + objective.window_hours * HOUR_US


def _positives(rows: pl.DataFrame, joined: pl.DataFrame, objective: Objective) -> np.ndarray:
    y = np.zeros(len(rows), dtype=np.int8)
    mine = joined.filter(pl.col("kind") == objective.name, pl.col("g").is_not_null())
    y[mine.filter(_in_time(objective))["g"].to_numpy()] = 1
    return y


def _figures(objectives: tuple[Objective, ...], joined: pl.DataFrame) -> Counter[str]:
    names = [o.name for o in objectives if o.name != "click"]
    figures = Counter({"conversions": len(joined)})
    figures["conversions_of_other_kinds"] = int((~joined["kind"].is_in(names)).sum())
    for objective in objectives:
        if objective.name == "click":
            continue
        mine = joined.filter(pl.col("kind") == objective.name)
        found = mine.filter(pl.col("g").is_not_null())
        in_time = len(found.filter(_in_time(objective)))
        figures[f"{objective.name}_arrived"] = len(mine)
        figures[f"{objective.name}_attributed"] = in_time
        figures[f"{objective.name}_late"] = len(found) - in_time
        figures[f"{objective.name}_without_impression"] = len(mine) - len(found)
    return figures
