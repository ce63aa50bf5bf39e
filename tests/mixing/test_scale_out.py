"""Bucket groups are units of work and nothing else: any number of them gives the same lake."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from plane_world import LAST, land_frame, landed_run, run_plane, shifted, toy_config, toy_run

from pipeline.mixing.hashing import bucket_of
from pipeline.mixing.ingest import ingest
from pipeline.mixing.timeline import publish_timelines, timeline_folder
from pipeline.run.manifest import MANIFEST, need_manifest
from pipeline.run.paths import Run
from pipeline.run.runs import units_of

BUCKETS = 16


def run_in_groups(home: Path, groups: int) -> Run:
    config = toy_config()
    window = replace(config.window, num_buckets=BUCKETS, num_groups=groups)
    return landed_run(home, replace(config, window=window), count=120)


def lake_of(run: Run) -> dict[str, str]:
    found = run.lake().rglob(MANIFEST)
    return {str(p.relative_to(run.home)): json.loads(p.read_text())["fingerprint"] for p in found}


def test_one_four_and_sixteen_groups_give_the_same_day(tmp_path: Path) -> None:
    lakes, mixes = [], []
    for groups in (1, 4, 16):
        run = run_in_groups(tmp_path / str(groups), groups)
        assert len(units_of(run, "timelines")) == groups
        done = run_plane(run)
        lakes.append(lake_of(run))
        mixes.append((done["labels"], done["mix"]))
    assert lakes[0] == lakes[1] == lakes[2]
    assert sum("/timeline/" in name for name in lakes[0]) == BUCKETS
    assert mixes[0] == mixes[1] == mixes[2]


def test_units_that_start_at_other_days_publish_the_same(tmp_path: Path) -> None:
    first, second = (landed_run(tmp_path / name, count=60) for name in ("a", "b"))
    forward = {u: ingest(first, u).fingerprint for u in ("feed", "reels", "rest")}
    backward = {u: ingest(second, u).fingerprint for u in ("rest", "reels", "feed")}
    assert forward == backward
    assert lake_of(first) == lake_of(second)


def test_late_events_rebuild_their_bucket_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = landed_run(tmp_path, count=60)
    ingest(run, "feed")
    ingest(run, "rest")
    before = toy_run(tmp_path, toy_config(shifted(LAST, -1)))
    publish_timelines(before, (0, 1))
    path = run.landing("engagements", f"day={shifted(LAST, -1)}") / "part-0.parquet"
    there = pl.read_parquet(path)
    late = there[:1].with_columns(pl.col("ts") + pl.duration(seconds=1))
    land_frame(run, "engagements", shifted(LAST, -1), late, "late")
    ingest(run, "rest")
    caplog.set_level("INFO")
    publish_timelines(run, (0, 1))
    bucket = int(bucket_of(late["user_id"].to_numpy(), 2)[0])
    assert f"timeline of bucket {bucket}: rebuilt" in caplog.text
    assert f"timeline of bucket {1 - bucket}: extended" in caplog.text


def test_rows_out_of_order_give_the_same_lake(tmp_path: Path) -> None:
    first, second = (landed_run(tmp_path / name, count=60) for name in ("a", "b"))
    path = second.landing("impressions", f"day={LAST}") / "part-0.parquet"
    pl.read_parquet(path).sample(fraction=1.0, shuffle=True, seed=3).write_parquet(path)
    for run in (first, second):
        ingest(run, "feed")
        ingest(run, "rest")
        publish_timelines(run, (0, 1))
    assert lake_of(first) == lake_of(second)
    assert need_manifest(timeline_folder(first, 0)).rows > 0
