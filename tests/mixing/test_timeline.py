from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from plane_world import (
    FEATURES,
    LAST,
    ingest_all,
    land_days,
    land_frame,
    landed_run,
    shifted,
    toy_config,
    toy_run,
)

from model.config import MatchCount
from pipeline.mixing.canonical import read_bucket, window_impressions
from pipeline.mixing.timeline import (
    TimelineReader,
    check_timelines,
    hist_rows,
    timeline_folder,
    timelines,
)
from pipeline.run.config import WindowConfig
from pipeline.run.errors import ConfigError, DataError
from pipeline.run.manifest import need_manifest
from pipeline.run.paths import Run
from pipeline.run.window import window_of


def prepared(home: Path, count: int = 300) -> Run:
    run = landed_run(home, count=count)
    ingest_all(run)
    return run


def all_rows(run: Run, table: str) -> pl.DataFrame:
    paths = sorted(run.lake("canonical", table).rglob("bucket=*.parquet"))
    return pl.concat([pl.read_parquet(p) for p in paths])


def test_hist_equals_a_row_by_row_count(tmp_path: Path) -> None:
    run = prepared(tmp_path)
    timelines(run, "0")
    shown, organic = all_rows(run, "impressions"), all_rows(run, "engagements")
    for bucket in range(2):
        rows = read_bucket(
            window_impressions(run), bucket, ["user_id", "ad_id", "category_id", "ts"]
        )
        hist = pl.read_parquet(run.output("timelines", "0") / f"hist/bucket={bucket}.parquet")
        assert hist["g"].to_list() == list(range(len(rows)))
        for g in range(0, len(rows), 17):
            row = rows.row(g, named=True)
            mine = shown.filter(
                pl.col("user_id") == row["user_id"],
                pl.col("ts") + pl.duration(seconds=600) < row["ts"],
            )
            seen = organic.filter(
                pl.col("user_id") == row["user_id"],
                pl.col("ts") + pl.duration(seconds=60) < row["ts"],
            )
            got = hist.row(g, named=True)
            assert got["end_shown"] - got["start_shown"] == len(mine)
            assert got["end_organic"] - got["start_organic"] == len(seen)
            same = mine.filter(pl.col("ad_id") == row["ad_id"])
            assert got["match_shown_ad_id"] == len(same)
            assert got["match_shown_ad_id_acted"] == same["click"].sum()
            alike = seen.filter(pl.col("category_id") == row["category_id"])
            assert got["match_organic_category_id"] == len(alike)
            assert got["match_organic_category_id_acted"] == len(alike)


def next_day(home: Path) -> Run:
    """The run of the day after, with that day landed and ingested."""
    day = shifted(LAST, 1)
    run = toy_run(home, toy_config(day))
    land_days(run, (shifted(LAST, -2), shifted(LAST, -1), LAST, day))
    ingest_all(run)
    return run


def test_the_next_day_extends_and_equals_a_rebuild(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = prepared(tmp_path)
    timelines(first, "0")
    run = next_day(tmp_path)
    caplog.set_level("INFO")
    extended = timelines(run, "0")
    assert "extended" in caplog.text
    prints = [need_manifest(timeline_folder(run, b)).fingerprint for b in (0, 1)]
    shutil.rmtree(timeline_folder(run, 0).parent)
    shutil.rmtree(timeline_folder(run, 0, LAST).parent)
    caplog.clear()
    assert timelines(run, "0").fingerprint == extended.fingerprint
    assert "rebuilt" in caplog.text
    assert prints == [need_manifest(timeline_folder(run, b)).fingerprint for b in (0, 1)]


def test_late_data_of_an_earlier_day_rebuild_the_timeline(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    timelines(prepared(tmp_path), "0")
    run = next_day(tmp_path)
    late = pl.read_parquet(run.landing("engagements", f"day={LAST}", "part-0.parquet"))[:-5]
    land_frame(run, "engagements", LAST, late)
    ingest_all(run)
    caplog.set_level("INFO")
    timelines(run, "0")
    assert "rebuilt" in caplog.text
    total = sum(len(TimelineReader(run, b).sequences("organic").ts_us) for b in (0, 1))
    assert total == len(all_rows(run, "engagements"))


def test_retention_drops_old_events(tmp_path: Path) -> None:
    window = WindowConfig(bootstrap_days=3, student_days=1, holdout_hours=12, retention_days=2)
    run = landed_run(tmp_path, toy_config(window=window))
    ingest_all(run)
    timelines(run, "0")
    kept = TimelineReader(run, 0).sequences("shown").ts_us
    assert kept.min() >= window_of(run.config).day_end - 2 * 24 * 3_600_000_000
    assert len(kept) > 0


def test_stored_columns_and_ad_hoc_questions(tmp_path: Path) -> None:
    run = prepared(tmp_path)
    timelines(run, "0")
    reader = TimelineReader(run, 0)
    shown = reader.sequences("shown")
    assert set(shown.columns) == {"ts_us", "ad_id", "category_id", "surface", "action"}
    assert set(np.unique(shown.columns["surface"])) == {0, 1}
    assert (np.diff(shown.user_id) >= 0).all()
    user = shown.users[:1]
    end_of_day = np.array([window_of(run.config).day_end])
    start, end = reader.visible("shown", user, end_of_day)
    assert 0 < end[0] - start[0] <= shown.offsets[1]
    stranger = np.array([10**9])
    assert reader.visible("shown", stranger, end_of_day)[1].tolist() == [0]
    match = FEATURES.matches[0]
    assert reader.match_counts(match, stranger, np.array([1]), end_of_day)[0].tolist() == [0.0]
    with pytest.raises(ConfigError, match="ad_id"):
        reader.match_counts(MatchCount(event="organic", key="ad_id"), user, user, end_of_day)


def test_one_group_does_not_touch_the_other(tmp_path: Path) -> None:
    config = toy_config()
    config = replace(config, window=replace(config.window, num_groups=2))
    run = landed_run(tmp_path, config)
    ingest_all(run)
    timelines(run, "1")
    assert not timeline_folder(run, 0).exists()
    assert [p.name for p in (run.output("timelines", "1") / "hist").iterdir()] == [
        "bucket=1.parquet"
    ]
    with pytest.raises(ConfigError, match=r"0\.\.1"):
        timelines(run, "2")


def test_changed_timelines_are_noticed(tmp_path: Path) -> None:
    run = prepared(tmp_path)
    timelines(run, "0")
    check_timelines(run)
    before = hist_rows(run, window_impressions(run), 0)
    other = pl.read_parquet(run.landing("engagements", f"day={LAST}", "part-0.parquet"))[:-50]
    land_frame(run, "engagements", LAST, other)
    ingest_all(run)
    with_less = timelines(run, "0")
    check_timelines(run)
    shutil.copytree(run.folder, run.folder.with_name("copy"))
    assert not hist_rows(run, window_impressions(run), 0).equals(before)
    copy = Run(folder=run.folder.with_name("copy"), config=run.config)
    land_days(run, window_of(run.config).days)
    ingest_all(run)
    assert timelines(run, "0").fingerprint != with_less.fingerprint
    with pytest.raises(DataError, match="changed"):
        check_timelines(copy)
