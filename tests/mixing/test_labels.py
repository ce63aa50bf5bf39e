from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from plane_world import (
    LAST,
    OBJECTIVES,
    impressions,
    ingest_all,
    land_frame,
    landed_run,
    toy_config,
)

from model.config import Objective
from pipeline.mixing.canonical import read_bucket, window_impressions
from pipeline.mixing.labels import labels
from pipeline.run.errors import ConfigError
from pipeline.run.paths import Run
from pipeline.run.window import HOUR_US, day_begin_us, window_of


def table(run: Run) -> pl.DataFrame:
    buckets = range(run.config.window.num_buckets)
    paths = [run.output("labels") / f"bucket={b}.parquet" for b in buckets]
    return pl.concat([pl.read_parquet(p) for p in paths])


def one_impression(run: Run, at_us: int, arrivals: list[tuple[int, str]]) -> None:
    """The last day and the days before hold one impression and the conversions that followed."""
    for day in window_of(run.config).days:
        begin = day_begin_us(day)
        frame = impressions(day, 1).with_columns(
            pl.Series("ts", [begin + at_us]).cast(pl.Datetime("us", "UTC")),
            pl.lit(0, dtype=pl.Int8).alias("click"),
        )
        land_frame(run, "impressions", day, frame)
    first = window_of(run.config).days[0]
    shown = impressions(first, 1)
    for day in window_of(run.config).days:
        begin = day_begin_us(day)
        times = [(day_begin_us(first) + at_us + delay, kind) for delay, kind in arrivals]
        mine = [(t, k) for t, k in times if begin <= t < begin + 24 * HOUR_US]
        rows = pl.DataFrame(
            {
                "impression_id": [shown["impression_id"][0]] * len(mine),
                "user_id": [shown["user_id"][0]] * len(mine),
                "kind": pl.Series([k for _, k in mine], dtype=pl.String),
                "ts": pl.Series([t for t, _ in mine], dtype=pl.Int64).cast(
                    pl.Datetime("us", "UTC")
                ),
            }
        )
        land_frame(run, "conversions", day, rows)


@pytest.mark.parametrize(
    ("delay_us", "kind", "positive", "figure"),
    [
        (0, "conversion", 1, "conversion_attributed"),
        (24 * HOUR_US - 1, "conversion", 1, "conversion_attributed"),
        (24 * HOUR_US, "conversion", 0, "conversion_late"),
        (30 * HOUR_US, "conversion", 0, "conversion_late"),
        (-1, "conversion", 0, "conversion_without_impression"),
        (HOUR_US, "install", 0, "conversions_of_other_kinds"),
    ],
)
def test_conversions_count_within_the_window(
    tmp_path: Path, delay_us: int, kind: str, positive: int, figure: str
) -> None:
    run = landed_run(tmp_path, count=5)
    one_impression(run, HOUR_US, [(delay_us, kind)])
    ingest_all(run)
    manifest = labels(run, "")
    first = table(run).sort("ts_us")[0]
    assert first["y_conversion"].item() == positive
    assert first["mature_conversion"].item()
    assert manifest.read_figures()[figure] == 1


def test_labels_mature_when_their_window_closes(tmp_path: Path) -> None:
    run = landed_run(tmp_path)
    ingest_all(run)
    labels(run, "")
    frame = table(run)
    end = day_begin_us(LAST) + 24 * HOUR_US
    assert frame["mature_click"].all()
    assert (frame["known_click"] == frame["ts_us"]).all()
    assert (frame["known_conversion"] - frame["ts_us"]).unique().to_list() == [24 * HOUR_US]
    expected = frame["ts_us"] + 24 * HOUR_US <= end
    assert (frame["mature_conversion"] == expected).all()
    assert 0 < expected.sum() < len(frame)


def test_the_last_impression_of_a_reused_id_gets_the_conversion(tmp_path: Path) -> None:
    run = landed_run(tmp_path, count=3)
    days = window_of(run.config).days
    for day in days:
        same = impressions(days[0], 1)["impression_id"][0]
        frame = impressions(day, 1).with_columns(
            pl.lit(same).alias("impression_id"),
            pl.lit(1, dtype=pl.Int64).alias("user_id"),
            pl.Series("ts", [day_begin_us(day)]).cast(pl.Datetime("us", "UTC")),
        )
        land_frame(run, "impressions", day, frame)
        land_frame(run, "conversions", day, pl.DataFrame())
    bought = pl.DataFrame(
        {
            "impression_id": [same],
            "user_id": [1],
            "kind": ["conversion"],
            "ts": pl.Series([day_begin_us(days[1]) + HOUR_US]).cast(pl.Datetime("us", "UTC")),
        }
    )
    land_frame(run, "conversions", days[1], bought)
    ingest_all(run)
    labels(run, "")
    assert table(run).sort("ts_us")["y_conversion"].to_list() == [0, 1, 0]


def test_rows_keep_the_canonical_order_and_every_conversion_is_accounted(tmp_path: Path) -> None:
    run = landed_run(tmp_path)
    ingest_all(run)
    figures = labels(run, "").read_figures()
    parts = window_impressions(run)
    for bucket in range(run.config.window.num_buckets):
        frame = pl.read_parquet(run.output("labels") / f"bucket={bucket}.parquet")
        source = read_bucket(parts, bucket, ["impression_id", "click"])
        assert frame["g"].to_list() == list(range(len(frame)))
        assert frame["impression_id"].equals(source["impression_id"])
        assert (frame["y_click"] == source["click"]).all()
    parts_of_it = ("attributed", "late", "without_impression")
    assert figures["conversion_arrived"] == sum(figures[f"conversion_{p}"] for p in parts_of_it)
    assert figures["conversion_late"] > 0


def test_a_conversion_without_a_window_is_refused(tmp_path: Path) -> None:
    config = toy_config(objectives=(*OBJECTIVES[:1], Objective(name="install")))
    run = landed_run(tmp_path, config, count=5)
    with pytest.raises(ConfigError, match=r"install\.window_hours"):
        labels(run, "")
