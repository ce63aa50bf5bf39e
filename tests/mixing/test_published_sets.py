from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from plane_world import run_plane, toy_run
from published_world import BEIJING_DAY_1, DAY_S, write_aliccp, write_kuairand, write_taobaoad

from pipeline.mixing.ingest import ingest
from pipeline.mixing.land import land
from pipeline.mixing.sources import aliccp
from pipeline.mixing.sources.published import land_published
from pipeline.run.config import RunConfig, WindowConfig, with_overrides
from pipeline.run.errors import DataError
from pipeline.run.paths import Run
from pipeline.run.presets import preset
from pipeline.run.published import PUBLISHED

FIRST_BEHAVIOR = BEIJING_DAY_1 - 14 * DAY_S
WRITERS: dict[str, Callable[[Path], None]] = {
    "taobaoad": write_taobaoad,
    "aliccp": write_aliccp,
    "kuairand": write_kuairand,
}


def config_of(name: str, files: Path | str) -> RunConfig:
    config = preset(PUBLISHED[name].default_day, "small", name)
    few = {"window.num_buckets": 2, "mix.budget": 20.0, "source.files": str(files)}
    return with_overrides(config, few)


def published_run(tmp_path: Path, name: str) -> Run:
    WRITERS[name](tmp_path / "files")
    return toy_run(tmp_path / "home", config_of(name, tmp_path / "files"))


def landed(run: Run, table: str) -> pl.DataFrame:
    paths = sorted(run.landing("set", table).rglob("*.parquet"))
    return pl.concat([pl.read_parquet(p) for p in paths])


def lines(path: Path, head: int) -> int:
    return len(path.read_text().splitlines()) - head


def totals(run: Run) -> dict[str, dict[str, int]]:
    """Ledger totals per table over all units."""
    found: dict[str, dict[str, int]] = {}
    for unit in (*run.config.surfaces, "rest"):
        ledger = json.loads((run.output("ingest", unit) / "ledger.json").read_text())
        for table, counts in ledger["totals"].items():
            kept = found.setdefault(table, dict.fromkeys(counts, 0))
            for key, value in counts.items():
                kept[key] += value
    return found


def write_short(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, int]:
    """The set on four days alone, so that one short run covers every row: last day, rows."""
    if name == "taobaoad":
        write_taobaoad(folder, begin=FIRST_BEHAVIOR, days=3)
        return "2017-04-24", lines(folder / "raw_sample.csv", 1)
    if name == "aliccp":
        monkeypatch.setattr(aliccp, "SPAN_DAYS", 2)
        write_aliccp(folder)
        return "2000-01-04", sum(lines(p, 0) for p in folder.glob("sample_skeleton_*"))
    write_kuairand(folder, days=(2, 3))
    return "2022-04-10", sum(lines(p, 1) for p in folder.glob("data/log_*"))


def short_run(home: Path, name: str, day: str, files: Path) -> Run:
    window = WindowConfig(
        bootstrap_days=4, student_days=2, holdout_hours=12, retention_days=4, num_buckets=2
    )
    return toy_run(home, replace(config_of(name, files), day=day, window=window))


@pytest.mark.parametrize("name", sorted(WRITERS))
def test_a_published_set_runs_to_the_mix_and_every_row_of_its_files_is_counted(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = tmp_path / "files"
    day, rows = write_short(name, files, monkeypatch)
    run = short_run(tmp_path / "home", name, day, files)
    land(run)
    run_plane(run)
    counts = totals(run)["impressions"]
    assert counts["rows_in"] == landed(run, "impressions").height == rows
    assert counts["rows_out"] + counts["quarantined"] + counts["duplicates"] == rows
    # what is refused: the session without common features has no user
    nobody = landed(run, "impressions")["user_id"].null_count()
    assert (counts["quarantined"], counts["duplicates"]) == (nobody, 0)
    assert (nobody > 0) == (name == "aliccp")
    for table in ("conversions", "engagements"):
        if run.landing("set", table).is_dir():
            inside = totals(run)[table]
            assert inside["rows_out"] + inside["quarantined"] == landed(run, table).height > 0
    assert pl.read_parquet(run.output("mix") / "train" / "*.parquet").height > 0


def test_taobaoad_joins_profiles_and_keeps_rows_that_have_none(tmp_path: Path) -> None:
    run = published_run(tmp_path, "taobaoad")
    counts = land_published(run).read_figures()["counts"]
    shown = landed(run, "impressions")
    assert shown["impression_id"].is_unique().all()
    assert set(shown["surface"]) == set(run.config.surfaces)
    bare = shown.filter(pl.col("ad_id") % 10 == 0)
    assert bare.height == counts["without_ad"] > 0
    assert bare["category_id"].sum() == bare["price"].sum() == 0
    known = shown.filter(pl.col("ad_id") == 11)
    assert known.select("category_id", "campaign_id", "advertiser_id", "price").unique().row(0) == (
        5,
        2,
        4,
        11.5,
    )
    assert shown.filter(pl.col("ad_id") == 12)["brand"].unique().to_list() == [1]
    assert known["brand"].unique().to_list() == [0]  # NULL in the file
    nobody = shown.filter(pl.col("user_id") % 10 == 0)
    assert nobody.height == counts["without_profile"] > 0
    assert nobody["cms_segid"].unique().to_list() == [0]
    # a published 0 is not the 0 of a missing profile, and an empty code is
    somebody = shown.filter(pl.col("user_id") == 11)
    assert somebody.select("cms_segid", "pvalue_level", "city_level").unique().row(0) == (1, 0, 2)
    behaved = landed(run, "engagements")
    assert behaved.height == counts["engagements"] == 1_201  # the exact copy is an event too
    assert set(behaved["kind"]) == {"pv", "cart", "fav", "buy"}
    assert behaved["ts"].dt.date().n_unique() == 23


def test_taobaoad_refuses_contradictory_clicks_and_foreign_times(tmp_path: Path) -> None:
    write_taobaoad(tmp_path / "files", begin=FIRST_BEHAVIOR, days=3)
    with (tmp_path / "files" / "raw_sample.csv").open("a") as file:
        file.write("7,1492900000,1,430548_1007,1,1\n")  # clicked and not clicked
        file.write("7,yesterday,1,430548_1007,1,0\n")
        file.write("7,-5,1,430548_1007,1,0\n7,1492900000,1,430548_1007,1,0,extra\n")
    run = short_run(tmp_path / "home", "taobaoad", "2017-04-24", tmp_path / "files")
    land(run)
    figures = land_published(run).read_figures()
    assert (figures["malformed_lines"], figures["counts"]["misdated"]) == (1, 2)
    assert json.loads((run.landing("set", "malformed.json")).read_text()) == [
        "7,1492900000,1,430548_1007,1,0,extra"
    ]
    for unit in (*run.config.surfaces, "rest"):
        ingest(run, unit)
    counts = totals(run)["impressions"]
    assert (counts["rows_in"], counts["quarantined"]) == (603, 3)


def test_aliccp_gives_rows_of_a_session_one_moment_and_sessions_different_ones(
    tmp_path: Path,
) -> None:
    run = published_run(tmp_path, "aliccp")
    counts = land_published(run).read_figures()["counts"]
    shown = landed(run, "impressions")
    assert shown.group_by("request_id").agg(pl.n_unique("ts"))["ts"].max() == 1
    assert shown["ts"].dt.date().n_unique() > 10
    train = shown.filter(pl.col("ts").dt.strftime("%F") < "2000-01-08")
    assert train.height == lines(tmp_path / "files" / "sample_skeleton_train.csv", 0)
    assert set(shown["surface"]) == set(run.config.surfaces)
    assert {counts[f"raw_value_of_position_{k}"] for k in (1, 2, 3)} == {
        9_351_665,
        9_351_666,
        9_351_667,
    }
    first = shown.filter(pl.col("impression_id") == 12).row(0, named=True)
    assert first["field_210"] == 7  # the first of several
    assert first["advertiser_id"] == (first["ad_id"] - 9_000_000) % 9 + 200
    # a session without common features has no user; purchases need a click
    assert shown["user_id"].null_count() == counts["without_common_features"] > 0
    assert counts["purchases_without_click"] == 1
    clicks = shown.filter(pl.col("click") == 1)["impression_id"]
    assert landed(run, "conversions")["impression_id"].is_in(clicks.implode()).all()


def test_kuairand_maps_tabs_to_surfaces_and_views_to_late_conversions(tmp_path: Path) -> None:
    run = published_run(tmp_path, "kuairand")
    counts = land_published(run).read_figures()["counts"]
    shown, viewed = landed(run, "impressions"), landed(run, "conversions")
    assert set(shown["surface"]) == set(run.config.surfaces)
    assert shown["is_rand"].value_counts().sort("is_rand")["count"].to_list() == [1_200, 400]
    assert shown["ts"].min() >= pl.Series(["2022-04-07T16:00Z"]).str.to_datetime()[0]
    gap = viewed.join(shown, on="impression_id", suffix="_shown")
    assert (gap["ts"] - gap["ts_shown"]).dt.total_milliseconds().unique().to_list() == [20_000]
    assert counts["without_user"] == shown.filter(pl.col("user_id") == 29).height > 0
    assert counts["without_video"] == shown.filter(pl.col("ad_id") >= 55).height > 0
    tagged = shown.filter(pl.col("ad_id") == 11)
    names = ("category_id", "advertiser_id", "video_type", "duration_s", "music_type")
    assert tagged.select(names).unique().row(0) == (13, 4, "NORMAL", pytest.approx(17.2), 5)
    floats = shown.filter(pl.col("user_id") == 11)["onehot_feat4"]
    assert floats.unique().to_list() == [3]  # written as 2.0


def test_files_of_two_kuairand_versions_are_not_mixed(tmp_path: Path) -> None:
    write_kuairand(tmp_path / "files", rows=5)
    write_kuairand(tmp_path / "files", rows=5, version="pure")
    run = toy_run(tmp_path / "home", config_of("kuairand", tmp_path / "files"))
    with pytest.raises(DataError, match=r"several versions of kuairand: \['1k', 'pure'\]"):
        land(run)


@pytest.mark.parametrize("name", sorted(WRITERS))
def test_a_missing_file_is_named_with_its_place_and_licence(tmp_path: Path, name: str) -> None:
    WRITERS[name](tmp_path / "files")
    role, names = PUBLISHED[name].files[-1]
    for path in (tmp_path / "files").rglob(f"*{role}*"):
        path.unlink()
    run = toy_run(tmp_path / "home", config_of(name, tmp_path / "files"))
    with pytest.raises(DataError) as error:
        land(run)
    text = str(error.value)
    assert "\n" not in text
    assert names[0] in text
    assert PUBLISHED[name].where in text
    assert f"licence: {PUBLISHED[name].licence}" in text


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ("", "set FILES=/their/folder"),
        ("/no/such/folder", "existing local folder, got '/no/such/folder'"),
        ("s3://bucket/set", "existing local folder, got 's3://bucket/set'"),
    ],
)
def test_a_set_without_its_folder_says_how_to_name_it(
    tmp_path: Path, files: str, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        land(toy_run(tmp_path, config_of("taobaoad", files)))


def test_a_column_that_is_missing_is_named_with_its_file(tmp_path: Path) -> None:
    write_taobaoad(tmp_path / "files")
    path = tmp_path / "files" / "raw_sample.csv"
    path.write_text(path.read_text().replace("adgroup_id", "ad", 1))
    run = toy_run(tmp_path / "home", config_of("taobaoad", tmp_path / "files"))
    with pytest.raises(DataError, match=r"raw_sample\.csv has no column adgroup_id, only \['user'"):
        land(run)


def test_what_was_landed_is_used_again_wherever_the_files_lie(tmp_path: Path) -> None:
    run = published_run(tmp_path, "taobaoad")
    first = land(run)
    part = next(iter(sorted(run.landing("set", "impressions").rglob("*.parquet"))))
    written = part.stat().st_mtime_ns
    other = toy_run(tmp_path / "other", run.config)
    assert land_published(other).fingerprint == land_published(run).fingerprint
    moved = tmp_path / "elsewhere"
    (tmp_path / "files").rename(moved)
    for files in (str(moved), ""):
        again = toy_run(tmp_path / "home", config_of("taobaoad", files))
        assert again.config.dataset == run.config.dataset
        assert land(again).fingerprint == first.fingerprint
    assert part.stat().st_mtime_ns == written
    path = moved / "ad_feature.csv"
    path.write_text(path.read_text().replace(".5", ".25"))
    os.utime(path, ns=(1, 1))
    changed = land(toy_run(tmp_path / "home", config_of("taobaoad", moved)))
    assert changed.fingerprint != first.fingerprint
