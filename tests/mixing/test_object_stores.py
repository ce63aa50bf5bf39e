from __future__ import annotations

import gzip
import json
import logging
import os
import socket
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from moto.server import ThreadedMotoServer
from plane_world import LAST, land_days, run_plane, toy_config, toy_run
from pyarrow import fs
from source_day import read_day

from pipeline.mixing.ingest import ingest
from pipeline.mixing.land import land
from pipeline.mixing.sources import stores
from pipeline.mixing.sources.files import files_of, mapping_of
from pipeline.mixing.sources.stores import StoredObject, cached, is_remote, listed, located, parsed
from pipeline.run.config import SourceConfig, TableMapping
from pipeline.run.errors import ConfigError, DataError, RetryError, exit_code
from pipeline.run.paths import Run
from pipeline.run.window import window_of

TABLES = ("impressions", "conversions", "engagements")
CSV = "impression_id,ts\n1,2026-03-06T01:00:00Z\n2,2026-03-06T02:00:00Z\n"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """A real server of the S3 protocol on loopback, and its address."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    moto.start()
    host, port = moto.get_host_and_port()
    yield f"http://{host}:{port}"
    moto.stop()


@pytest.fixture
def s3(server: str, monkeypatch: pytest.MonkeyPatch) -> fs.S3FileSystem:
    """The environment of a user of that server, an empty bucket `logs`, and a writer to it."""
    urllib.request.urlopen(urllib.request.Request(f"{server}/moto-api/reset", method="POST"))
    for name in stores.SETTINGS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL", server)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    writer = fs.S3FileSystem(
        endpoint_override=server.removeprefix("http://"),
        scheme="http",
        region="us-east-1",
        allow_bucket_creation=True,
    )
    writer.create_dir("logs")
    return writer


def put(s3: fs.S3FileSystem, key: str, content: bytes) -> None:
    with s3.open_output_stream(f"logs/{key}", compression=None) as stream:
        stream.write(content)


def stored_run(home: Path, *tables: TableMapping) -> Run:
    return toy_run(home, toy_config(source=SourceConfig(name="far", tables=tables)))


def logs(path: str, form: str = "csv") -> TableMapping:
    return TableMapping(table="impressions", path=path, format=form)  # type: ignore[arg-type]


def copies(home: Path) -> dict[str, int]:
    """Every copy with the time at which it was written."""
    found = [p for p in (home / "lake" / "remote").rglob("*") if p.is_file()]
    return {p.name: p.stat().st_mtime_ns for p in found if not p.name.startswith(".")}


def upload_toy(s3: fs.S3FileSystem, home: Path) -> Run:
    """The toy world's landing files as objects; the local run that they come from."""
    near = toy_run(home, toy_config())
    land_days(near, window_of(near.config).days, 200)
    for path in sorted(near.landing().rglob("*.parquet")):
        put(s3, f"toy/{path.relative_to(near.landing())}", path.read_bytes())
    return near


def far_tables() -> tuple[TableMapping, ...]:
    paths = {t: f"s3://logs/toy/{t}/day={{day}}/*.parquet" for t in TABLES}
    return tuple(TableMapping(table=t, path=p) for t, p in paths.items())  # type: ignore[arg-type]


def test_a_day_from_the_store_gives_what_the_same_local_files_give(
    tmp_path: Path, s3: fs.S3FileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    near = upload_toy(s3, tmp_path / "near")
    run = stored_run(tmp_path / "far", *far_tables())
    first = land(run)
    written = copies(run.home)
    assert land(run) == first
    assert copies(run.home) == written  # fetched once
    # all other stages read the copies: no network, no credentials
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    land(near)
    mine, theirs = run_plane(run), run_plane(near)
    assert mine["mix"] == theirs["mix"]
    assert mine["ingest/rest"] == theirs["ingest/rest"]


def test_csv_gzip_and_hive_folders_are_read_as_they_are_locally(
    tmp_path: Path, s3: fs.S3FileSystem
) -> None:
    put(s3, f"h/day={LAST}/surface=feed/a.csv.gz", gzip.compress(CSV.encode()))
    put(s3, f"h/day={LAST}/surface=reels/b.csv", CSV.replace("1,", "3,").encode())
    put(s3, f"h/day={LAST}/surface=reels/_SUCCESS", b"")
    put(s3, f"h/day={LAST}/surface=reels/broken.csv.gz", gzip.compress(CSV.encode())[:-9])
    run = stored_run(tmp_path, logs("s3://logs/h/day={day}"))
    land(run)
    read = read_day(run, "impressions", LAST)
    rows = read.frame.sort("impression_id", "surface")
    assert rows["impression_id"].to_list() == ["1", "2", "2", "3"]
    assert rows["surface"].to_list() == ["feed", "feed", "reels", "reels"]
    assert [p.name for p, _ in read.broken] == ["broken.csv.gz"]
    index = json.loads((run.output("land") / "index.json").read_text())
    entry = index["days"][LAST]["impressions"][0]
    assert entry["path"] == f"s3://logs/h/day={LAST}/surface=feed/a.csv.gz"
    assert entry["bytes"] == len(gzip.compress(CSV.encode()))
    assert entry["mark"]


def test_a_file_without_a_day_in_its_path_is_fetched_once_for_all_days(
    tmp_path: Path, s3: fs.S3FileSystem
) -> None:
    put(s3, "all.csv", CSV.replace("06T01", "05T01").encode())
    run = stored_run(tmp_path, logs("s3://logs/all.csv"))
    land(run)
    assert list(copies(run.home)) == ["all.csv"]
    for day, ids in ((LAST, ["2"]), ("2026-03-05", ["1"])):
        assert read_day(run, "impressions", day).frame["impression_id"].to_list() == ids


def test_a_changed_object_changes_the_run_and_an_untouched_one_does_not(
    tmp_path: Path, s3: fs.S3FileSystem
) -> None:
    key = f"d/{LAST}/a.csv"
    put(s3, key, CSV.encode())
    run = stored_run(tmp_path, logs("s3://logs/d/{day}/*.csv"))
    first = land(run).fingerprint
    put(s3, key, CSV.encode())  # written again with the same content: the ETag stays
    assert land(run).fingerprint == first
    put(s3, key, CSV.replace("2026-03-06T02", "2026-03-06T03").encode())  # of the same length
    assert land(run).fingerprint != first
    mapping = mapping_of(run, "impressions")
    assert mapping is not None
    (path,) = files_of(run, mapping, LAST)
    assert "06T03" in path.read_text()
    path.unlink()  # the cache may be emptied at any time
    assert "06T03" in files_of(run, mapping, LAST)[0].read_text()


def test_an_object_that_is_gone_since_land_is_named(tmp_path: Path, s3: fs.S3FileSystem) -> None:
    put(s3, f"d/{LAST}/a.csv", CSV.encode())
    run = stored_run(tmp_path, logs("s3://logs/d/{day}/*.csv"))
    mapping = mapping_of(run, "impressions")
    assert mapping is not None
    with pytest.raises(DataError, match="stage land lists the objects of source far"):
        files_of(run, mapping, LAST)
    land(run)
    files_of(run, mapping, LAST)[0].unlink()
    s3.delete_file(f"logs/d/{LAST}/a.csv")
    with pytest.raises(DataError, match=rf"s3://logs/d/{LAST}/a\.csv is gone since it was listed"):
        files_of(run, mapping, LAST)


@pytest.mark.parametrize(
    "pattern",
    [
        "t/day=1",
        "t/day=1/",
        "t/*/a.csv",
        "t/day=[12]/*.csv",
        "t/**/a.csv",
        "t/day=1/a.csv",
        "t/da*",
    ],
)
def test_patterns_mean_in_a_store_what_they_mean_on_a_disk(
    tmp_path: Path, s3: fs.S3FileSystem, pattern: str
) -> None:
    keys = ["t/day=1/a.csv", "t/day=1/sub/a.csv", "t/day=1/.b.csv", "t/day=2/c.csv", "t/a.csv"]
    for key in (*keys, "t/day=12/a.csv", "u/day=1/a.csv"):
        put(s3, key, b"x\n1\n")
        (tmp_path / key).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / key).write_text("x\n1\n")
    run = toy_run(tmp_path, toy_config())
    near = files_of(run, logs(pattern), LAST)
    far = [o.location.key for o in listed(located(f"s3://logs/{pattern}"), (".csv",))]
    assert far == [str(p.relative_to(tmp_path)) for p in near]


def test_a_day_without_objects_names_the_nearest_that_exist(
    tmp_path: Path, s3: fs.S3FileSystem
) -> None:
    for day in ("2026-02-01", "2026-03-04"):
        put(s3, f"d/day={day}/a.csv", CSV.encode())
    run = stored_run(tmp_path, logs("s3://logs/d/day={day}/*.csv"))
    with pytest.raises(DataError, match=r"no impressions for day 2026-03-06 .*2026-02-01, 2026-03"):
        land(run)


@pytest.mark.parametrize("path", ["s3://nowhere/d/{day}", "s3://nowhere/d/{day}/*.csv"])
def test_a_missing_bucket_is_final_and_named(
    tmp_path: Path, s3: fs.S3FileSystem, path: str
) -> None:
    with pytest.raises(DataError, match=r"s3://nowhere/d/2026-.*no such bucket; check") as error:
        land(stored_run(tmp_path, logs(path)))
    assert exit_code(error.value) == 65


def test_a_key_that_the_store_does_not_know_is_final_and_names_the_variable(
    tmp_path: Path, s3: fs.S3FileSystem, server: str
) -> None:
    switch = urllib.request.Request(
        f"{server}/moto-api/reset-auth", b"0", {"Content-Type": "text/plain"}, method="POST"
    )
    urllib.request.urlopen(switch)
    try:
        with pytest.raises(DataError, match=r"s3://logs/d/.*AWS_ACCESS_KEY_ID") as error:
            land(stored_run(tmp_path, logs("s3://logs/d/{day}")))
    finally:
        switch.data = b"inf"
        urllib.request.urlopen(switch)
    assert exit_code(error.value) == 65


def test_a_store_that_is_away_or_silent_is_tried_again(
    tmp_path: Path, s3: fs.S3FileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "ANSWER_S", 1.0)
    monkeypatch.setattr(stores, "ATTEMPTS", 1)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(8)
        for address in ("127.0.0.1:9", f"127.0.0.1:{silent.getsockname()[1]}"):
            monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{address}")
            with pytest.raises(
                RetryError, match=r"s3://logs/d/.* does not answer: .*AWS_ENDP"
            ) as e:
                land(stored_run(tmp_path, logs("s3://logs/d/{day}")))
            assert exit_code(e.value) == 75


def test_a_killed_fetch_leaves_nothing_under_the_objects_name(
    tmp_path: Path, s3: fs.S3FileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(s3, f"d/{LAST}/a.csv", CSV.encode())
    run = stored_run(tmp_path, logs("s3://logs/d/{day}/*.csv"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            land(run)
    assert copies(run.home) == {}
    land(run)
    assert list(copies(run.home)) == ["a.csv"]


def test_google_paths_take_the_same_way_as_far_as_their_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = located("gs://logs/d/day=1/*.parquet")
    assert (where.scheme, where.bucket, where.prefix) == ("gs", "logs", "d/day=1")
    monkeypatch.setattr(stores, "ANSWER_S", 0.5)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")
    with pytest.raises(RetryError, match=r"gs://logs/d/.* does not answer: .*STORAGE_EMULATOR"):
        land(stored_run(tmp_path, logs("gs://logs/d/{day}/*.csv")))


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("s3://", "name a bucket"),
        ("s3://logs", "name a bucket"),
        ("s3:///d/x.csv", "name a bucket"),
        ("s3://../d/x.csv", "name a bucket"),
        ("s3://logs/../../etc/{day}", "name a bucket"),
        ("hdfs://logs/d", "must be a local path, s3:// or gs://"),
    ],
)
def test_a_wrong_address_is_a_config_error(tmp_path: Path, path: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        land(stored_run(tmp_path, logs(path)))


def test_a_copy_never_lies_outside_the_cache(tmp_path: Path) -> None:
    assert not is_remote("logs/{day}/*.csv")
    item = StoredObject(location=parsed("s3://logs/a/../../../../../evil.csv"), bytes=1, mark="x")
    with pytest.raises(ConfigError, match="leads outside"):
        cached(tmp_path, item)
    fine = replace(item, location=parsed("s3://logs/a/k=v/b.csv"))
    assert cached(tmp_path, fine).is_relative_to(tmp_path / "lake" / "remote" / "s3" / "logs")
    assert cached(tmp_path, fine) != cached(tmp_path, replace(fine, mark="y"))


def test_ingest_of_a_store_reports_a_broken_object_by_name(
    tmp_path: Path, s3: fs.S3FileSystem
) -> None:
    upload_toy(s3, tmp_path / "near")
    put(s3, f"toy/impressions/day={LAST}/bad.parquet", b"PAR1 and then nothing")
    run = stored_run(tmp_path / "far", *far_tables())
    land(run)
    ingest(run, "feed")
    ledger = json.loads((run.output("ingest", "feed") / "ledger.json").read_text())
    (entry,) = [e for e in ledger["entries"] if e["day"] == LAST]
    assert entry["broken_files"][0].startswith("bad.parquet: ")
    assert isinstance(entry["rows_in"], int)
    assert entry["rows_in"] == entry["rows_out"] + entry["quarantined"] + entry["duplicates"] > 0
