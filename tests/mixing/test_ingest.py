from __future__ import annotations

import datetime as dt
import json
from pathlib import Path

import polars as pl
import pytest
from plane_world import LAST, impressions, ingest_all, land_frame, landed_run, shifted, toy_run
from plane_world import toy_config as config_of

from pipeline.mixing.canonical import partition_folder
from pipeline.mixing.hashing import bucket_of
from pipeline.mixing.ingest import ingest
from pipeline.mixing.ledger import Entry
from pipeline.mixing.quarantine import quarantine_folder
from pipeline.run.errors import ConfigError, ContractError, DataError
from pipeline.run.manifest import need_manifest
from pipeline.run.paths import Run
from pipeline.run.window import window_of


def ledger(run: Run, unit: str, table: str = "impressions", day: str = LAST) -> dict:
    entries = json.loads((run.output("ingest", unit) / "ledger.json").read_text())["entries"]
    return next(e for e in entries if e["table"] == table and e["day"] == day)


def hostile() -> pl.DataFrame:
    frame = impressions(LAST, 12).with_columns(pl.lit("feed").alias("surface"))
    midnight = dt.datetime(2026, 3, 7, tzinfo=dt.UTC)

    def bad(row: int, column: str, value: object) -> pl.Expr:
        return pl.when(pl.int_range(pl.len()) == row).then(pl.lit(value)).otherwise(pl.col(column))

    frame = frame.with_columns(bad(0, "user_id", None).alias("user_id"))
    frame = frame.with_columns(bad(1, "ts", midnight).alias("ts"))
    frame = frame.with_columns(bad(2, "click", 2).alias("click"))
    frame = frame.with_columns(bad(3, "surface", "billboard").alias("surface"))
    frame = frame.with_columns(bad(4, "surface", None).alias("surface"))
    frame = frame.with_columns(bad(5, "mood", float("nan")).alias("mood"))
    frame = frame.with_columns(bad(6, "ad_id", -5).alias("ad_id"))
    frame = frame.with_columns(bad(7, "color", "x" * 1_000).alias("color"))
    return pl.concat([frame, frame[8:10]])  # two duplicates


def test_hostile_rows_end_in_the_ledger(tmp_path: Path) -> None:
    run = landed_run(tmp_path)
    broken = land_frame(run, "impressions", LAST, hostile())
    (broken.parent / "part-1.parquet").write_bytes(broken.read_bytes()[:200])  # truncated
    wrong_type = impressions(LAST, 20, seed=9)[12:].with_columns(
        pl.lit("feed").alias("surface"), pl.lit("someone").alias("user_id")
    )
    land_frame(run, "impressions", LAST, wrong_type, "part-2")
    ingest_all(run)
    feed, rest = ledger(run, "feed"), ledger(run, "rest")
    assert feed["rows_in"] + rest["rows_in"] == 12 + 2 + 8
    assert feed["rows_out"] == 4
    assert feed["duplicates"] == 2
    assert feed["reasons"] == {
        "user_id is null": 1,
        "user_id is not an integer of 0 or more": 8,
        "ts is outside the day": 1,
        "click is not 0 or 1": 1,
        "mood is not a finite number": 1,
        "ad_id is not an integer of 0 or more": 1,
        "color is no id (an integer of 0 or more, or a short text)": 1,
        "impression_id is a duplicate": 2,
    }
    assert rest["reasons"] == {"surface is null": 1, "surface is not one of feed, reels": 1}
    assert [b.split(":")[0] for b in feed["broken_files"]] == ["part-1.parquet"]
    assert feed["schema_changes"]
    kept = pl.read_parquet(quarantine_folder(run, "impressions", LAST, "feed") / "rejected.parquet")
    assert len(kept) == feed["quarantined"] + feed["duplicates"]
    assert json.loads(kept["row"][0])["surface"] == "feed"


def test_partitions_hold_the_good_rows_by_bucket_and_time(tmp_path: Path) -> None:
    run = landed_run(tmp_path)
    ingest_all(run)
    source = pl.read_parquet(run.landing("impressions", f"day={LAST}", "part-0.parquet"))
    source = source.filter(pl.col("surface") == "feed")
    folder = partition_folder(run, "impressions", LAST, "feed")
    found = []
    for bucket in range(2):
        frame = pl.read_parquet(folder / f"bucket={bucket}.parquet")
        assert (bucket_of(frame["user_id"].to_numpy(), 2) == bucket).all()
        assert frame["ts"].is_sorted()
        found.append(frame)
    both = pl.concat(found).sort("impression_id")
    assert both["impression_id"].equals(source["impression_id"])
    assert both.filter(pl.col("ad_id") % 3 == 2)["color"].unique().to_list() == [7]


def test_twice_is_a_no_op_and_two_homes_agree(tmp_path: Path) -> None:
    first = landed_run(tmp_path / "a")
    once = ingest_all(first)
    file = partition_folder(first, "impressions", LAST, "feed") / "bucket=0.parquet"
    before = file.stat().st_mtime_ns
    assert ingest_all(first) == once
    assert file.stat().st_mtime_ns == before
    assert ingest_all(landed_run(tmp_path / "b")) == once


def test_changed_source_files_replace_their_day_alone(tmp_path: Path) -> None:
    run = landed_run(tmp_path)
    ingest_all(run)
    earlier = partition_folder(run, "impressions", shifted(LAST, -1), "feed") / "manifest.json"
    before = earlier.stat().st_mtime_ns
    land_frame(run, "impressions", LAST, impressions(LAST, 50, seed=4))
    ingest_all(run)
    assert ledger(run, "feed")["rows_in"] + ledger(run, "reels")["rows_in"] == 50
    assert earlier.stat().st_mtime_ns == before


def test_an_empty_earlier_day_is_an_empty_partition(tmp_path: Path) -> None:
    run = landed_run(tmp_path)
    day = window_of(run.config).days[0]
    for table in ("impressions", "conversions", "engagements"):
        (run.landing(table, f"day={day}") / "part-0.parquet").unlink()
    ingest_all(run)
    manifest = need_manifest(partition_folder(run, "impressions", day, "feed"))
    assert manifest.rows == 0
    assert len(manifest.files) == run.config.window.num_buckets


def test_a_run_day_without_data_is_an_error(tmp_path: Path) -> None:
    run = landed_run(tmp_path)
    (run.landing("impressions", f"day={LAST}") / "part-0.parquet").unlink()
    for _ in range(2):  # the second time the empty partition is found finished
        with pytest.raises(DataError, match=f"day without data.*{LAST}.*DAY="):
            ingest(run, "feed")


def test_unknown_units_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="billboard"):
        ingest(toy_run(tmp_path, config_of()), "billboard")


def test_a_ledger_that_does_not_add_up_is_an_error() -> None:
    entry = Entry(table="t", day=LAST, rows_in=3, rows_out=1, quarantined=1, duplicates=0)
    with pytest.raises(ContractError, match="does not add up"):
        entry.checked()


def test_truth_is_split_by_user(tmp_path: Path) -> None:
    run = landed_run(tmp_path)
    truth = impressions(LAST, 30).select("impression_id", "user_id", pl.lit(0.1).alias("p_click"))
    land_frame(run, "truth", LAST, truth)
    ingest_all(run)
    parts = [
        pl.read_parquet(run.lake("truth", f"day={LAST}", f"bucket={b}.parquet")) for b in (0, 1)
    ]
    assert pl.concat(parts).sort("impression_id").equals(truth)
