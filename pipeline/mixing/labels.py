"""Labels: clicks and the conversions that joined in time, with the moment each label is known.

A conversion belongs to its last touch (`attribution.py`), when it arrived within the objective's
window: impression <= conversion < impression + window. The label is known, positive or not, when
that window closes, and mature when it closed by the end of the day.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import polars as pl

from model.config import Objective
from pipeline.mixing.attribution import (
    CONVERSION_SCHEMA,
    Arrivals,
    arrivals,
    attribute,
    in_time,
    listed_arrivals,
)
from pipeline.mixing.canonical import (
    REST,
    Partition,
    bucket_file,
    partitions,
    read_bucket,
    window_impressions,
)
from pipeline.mixing.frames import write_selection
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
        came: Arrivals = Counter()
        rows = 0
        for bucket in range(run.config.window.num_buckets):
            frame, counted, arrived = label_bucket(run, shown, bought, bucket)
            write_selection(bucket_file(temporary, bucket), frame)
            figures.update(counted)
            came.update(arrived)
            rows += len(frame)
        return Outcome(rows=rows, figures=dict(figures) | {"arrivals": listed_arrivals(came)})

    return produce(
        run.output("labels"),
        stage="labels",
        unit=unit,
        inputs=ingested(run),
        settings=[run.config.objectives, window],
        build=build,
    )


def label_bucket(
    run: Run, shown: list[Partition], bought: list[Partition], bucket: int
) -> tuple[pl.DataFrame, Counter[str], Arrivals]:
    """Labels of one bucket in canonical order; its conversions counted, and by where they went."""
    rows = read_bucket(shown, bucket, ["impression_id", "user_id", "ad_id", "ts", "click"])
    rows = rows.with_columns(pl.col("ts").dt.epoch("us").alias("ts_us")).with_row_index("g")
    rows = rows.with_columns(pl.col("g").cast(pl.Int64))
    joined = attribute(rows, _conversions(bought, bucket))
    figures = _figures(run.config.objectives, joined)
    window = window_of(run.config)
    arrived: Arrivals = Counter()
    for objective in _conversion_kinds(run.config.objectives):
        arrived.update(arrivals(joined, objective, window))
    table = rows.select("g", "impression_id", "ts_us")
    for objective in run.config.objectives:
        y = (
            rows["click"].to_numpy()
            if objective.name == "click"
            else _positives(rows, joined, objective)
        )
        known = rows["ts_us"].to_numpy() + objective.window_hours * HOUR_US
        mature = known <= window.day_end
        name = objective.name
        table = table.with_columns(
            pl.Series(f"y_{name}", y, dtype=pl.Int8),
            pl.Series(f"known_{name}", known, dtype=pl.Int64),
            pl.Series(f"mature_{name}", mature, dtype=pl.Boolean),
        )
        figures[f"{name}_mature"] = int(mature.sum())
        figures[f"{name}_immature"] = int((~mature).sum())
        figures[f"{name}_positive"] = int(y[mature].sum())
    return table, figures, arrived


def _conversion_kinds(objectives: tuple[Objective, ...]) -> list[Objective]:
    return [o for o in objectives if o.name != "click"]


def _conversions(bought: list[Partition], bucket: int) -> pl.DataFrame:
    if not bought:
        return pl.DataFrame(schema=CONVERSION_SCHEMA)
    frame = read_bucket(bought, bucket, ["impression_id", "user_id", "ad_id", "kind", "ts"])
    return frame.with_columns(pl.col("ts").dt.epoch("us").alias("at")).drop("ts")


def _positives(rows: pl.DataFrame, joined: pl.DataFrame, objective: Objective) -> np.ndarray:
    y = np.zeros(len(rows), dtype=np.int8)
    mine = joined.filter(pl.col("kind") == objective.name, pl.col("g").is_not_null())
    y[mine.filter(in_time(objective))["g"].to_numpy()] = 1
    return y


def _figures(objectives: tuple[Objective, ...], joined: pl.DataFrame) -> Counter[str]:
    kinds = _conversion_kinds(objectives)
    figures = Counter({"conversions": len(joined)})
    named = joined["kind"].is_in([o.name for o in kinds])
    figures["conversions_of_other_kinds"] = int((~named).sum())
    for objective in kinds:
        mine = joined.filter(pl.col("kind") == objective.name)
        found = mine.filter(pl.col("g").is_not_null())
        good = found.filter(in_time(objective))
        name = objective.name
        figures[f"{name}_arrived"] = len(mine)
        figures[f"{name}_attributed"] = len(good)
        figures[f"{name}_last_touch"] = int((~good["named"]).sum())
        figures[f"{name}_repeated"] = len(good) - good["g"].n_unique()
        figures[f"{name}_late"] = len(found) - len(good)
        figures[f"{name}_without_impression"] = len(mine) - len(found)
    return figures
