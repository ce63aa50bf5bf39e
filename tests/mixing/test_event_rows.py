from __future__ import annotations

import datetime as dt
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from plane_world import FEATURES, SURFACES, ingest_all, landed_run

from data_contracts.schema import ENGAGEMENTS
from pipeline.mixing import frames
from pipeline.mixing.canonical import partitions, read_bucket, window_impressions
from pipeline.mixing.event_rows import event_sequences, integers, read_columns, read_table
from pipeline.mixing.frames import write_frame
from pipeline.run.errors import DataError
from pipeline.run.window import window_of


def rows(count: int, surface: str) -> pl.DataFrame:
    moment = dt.datetime(2026, 3, 1, tzinfo=dt.UTC)
    return pl.DataFrame(
        {
            "user_id": np.arange(count),
            "ts": [moment + dt.timedelta(microseconds=i) for i in range(count)],
            "kind": ["view"] * count,
            "item_id": np.arange(count) * 2**40,
            "category_id": np.arange(count) % 3,
            "surface": [surface] * count,
        },
        schema_overrides={"ts": pl.Datetime("us", "UTC")},
    )


def test_columns_of_several_files_and_row_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "ROW_GROUP", 7)
    paths = []
    for place, count in enumerate((20, 0, 3)):
        paths.append(tmp_path / f"{place}.parquet")
        write_frame(paths[-1], rows(count, SURFACES[0]), ENGAGEMENTS)
    table = read_columns(paths, ["item_id", "ts"])
    assert (integers(table["item_id"]) == np.r_[np.arange(20), np.arange(3)] * 2**40).all()
    begin = integers(table["ts"])[0]
    assert begin == dt.datetime(2026, 3, 1, tzinfo=dt.UTC).timestamp() * 1_000_000
    assert (integers(table["ts"]) - begin).tolist() == [*range(20), *range(3)]
    assert integers(read_columns(paths[1:2], ["ts"])["ts"]).tolist() == []


def test_events_are_those_of_the_canonical_rows(tmp_path: Path) -> None:
    run = landed_run(tmp_path, count=200)
    ingest_all(run)
    days = window_of(run.config).days
    for event in FEATURES.events:
        parts = partitions(run, event.source, days)
        item, acted = ("ad_id", "click") if event.source == "impressions" else ("item_id", "kind")
        wanted = read_bucket(parts, 1, ["user_id", "ts", item, "surface", acted])
        wanted = wanted.sort("user_id", "ts", maintain_order=True)
        got = event_sequences(event.source, parts, 1, SURFACES)
        assert got.user_id.tolist() == wanted["user_id"].to_list()
        assert got.ts_us.tolist() == wanted["ts"].dt.epoch("us").to_list()
        assert got.columns[item].tolist() == wanted[item].to_list()
        assert [SURFACES[s] for s in got.columns["surface"]] == wanted["surface"].to_list()
        clicks = wanted[acted].to_list() if acted == "click" else [1] * len(wanted)
        assert got.columns["action"].tolist() == clicks


def test_an_unknown_surface_comes_after_the_last(tmp_path: Path) -> None:
    run = landed_run(tmp_path, count=60)
    ingest_all(run)
    parts = partitions(run, "engagements", window_of(run.config).days)
    got = event_sequences("engagements", parts, 0, ("reels",))
    assert set(got.columns["surface"].tolist()) == {1}  # the toy's engagements are of the feed


def test_with_kinds_an_action_is_the_place_of_its_kind(tmp_path: Path) -> None:
    run = landed_run(tmp_path, count=200)
    ingest_all(run)
    parts = partitions(run, "engagements", window_of(run.config).days)
    wanted = read_bucket(parts, 1, ["user_id", "ts", "kind"])
    wanted = wanted.sort("user_id", "ts", maintain_order=True)["kind"].to_list()
    names = tuple(sorted(set(wanted)))
    got = event_sequences("engagements", parts, 1, SURFACES, ("never", *names))
    assert got.columns["action"].dtype == "int8"
    assert [names[a - 1] for a in got.columns["action"]] == wanted
    other = event_sequences("engagements", parts, 1, SURFACES, ("never",))
    assert set(other.columns["action"].tolist()) == {1}, "an unknown kind comes after the last"


def test_no_partition_is_said(tmp_path: Path) -> None:
    run = landed_run(tmp_path, count=60)
    ingest_all(run)
    assert len(read_table(window_impressions(run), 0, ["ts"])) > 0
    with pytest.raises(DataError, match="no canonical partition"):
        read_table([], 0, ["ts"])
