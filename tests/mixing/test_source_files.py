from __future__ import annotations

import gzip
import os
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from source_day import read_day

from pipeline.mixing.sources.files import files_of
from pipeline.run.config import SourceConfig, TableMapping
from pipeline.run.errors import ConfigError
from pipeline.run.paths import Run, run_folder
from pipeline.run.presets import preset

DAY = "2026-11-20"
LINES = "impression_id,user,when\n1,7,1795132800\n2,8,1795132900\n"
COLUMNS = (
    ("user_id", '"user"'),
    ("ts", 'TRY_CAST("when" AS BIGINT) * 1000000'),
    ("surface", "'feed'"),
)


def run_of(home: Path, *mappings: TableMapping) -> Run:
    config = replace(preset(DAY, "smoke"), source=SourceConfig(name="mine", tables=mappings))
    return Run(folder=run_folder(config, home), config=config)


def impressions(path: str, **more: object) -> TableMapping:
    settings = {"format": "csv", "columns": COLUMNS, **more}
    return TableMapping(table="impressions", path=path, **settings)  # type: ignore[arg-type]


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz", "a.tsv"])
def test_delimited_files_come_as_text_with_the_mapped_columns_computed(
    tmp_path: Path, name: str
) -> None:
    text = LINES.replace(",", "\t") if name.endswith(".tsv") else LINES
    content = gzip.compress(text.encode()) if name.endswith(".gz") else text.encode()
    write(tmp_path / "logs" / DAY / name, content)
    read = read_day(run_of(tmp_path, impressions("logs/{day}/*")), "impressions", DAY)
    assert read.frame.to_dict(as_series=False) == {
        "impression_id": ["1", "2"],
        "user_id": ["7", "8"],
        "ts": [1795132800000000, 1795132900000000],
        "surface": ["feed", "feed"],
    }
    assert (len(read.files), read.broken, read.changes) == (1, [], ())


def test_hive_folders_become_columns_unless_the_file_has_them(tmp_path: Path) -> None:
    frame = pl.DataFrame({"impression_id": [1, 2], "user_id": [3, 4]})
    for surface in ("feed", "reels"):
        path = tmp_path / "hive" / f"day={DAY}" / f"surface={surface}" / "x.parquet"
        path.parent.mkdir(parents=True)
        frame.write_parquet(path)
    own = tmp_path / "hive" / f"day={DAY}" / "surface=wrong" / "y.parquet"
    own.parent.mkdir()
    frame.with_columns(surface=pl.lit("stories")).write_parquet(own)
    mapping = TableMapping(table="impressions", path="hive/day={day}")
    read = read_day(run_of(tmp_path, mapping), "impressions", DAY)
    assert read.frame["surface"].value_counts(sort=True).height == 3
    assert "wrong" not in read.frame["surface"].to_list()
    assert read.frame["user_id"].dtype == pl.Int64


def test_files_without_a_day_in_their_path_are_filtered_by_time(tmp_path: Path) -> None:
    lines = (
        "impression_id,ts\n1,2026-11-19T23:59:59Z\n2,2026-11-20T00:00:00Z\n3,nonsense\n"
        "4,2026-11-20 23:59:59.999999\n5,2026-11-21T00:00:00+00:00\n6,1795132800000000\n"
    )
    write(tmp_path / "all.csv", lines)
    run = run_of(tmp_path, impressions("all.csv", columns=()))
    days = {}
    for day in ("2026-11-18", "2026-11-19", DAY, "2026-11-21"):
        read = read_day(run, "impressions", day)
        days[day] = read.frame["impression_id"].to_list() if read.frame.width else []
    # the row that has no time goes with the first day: it is seen once, and not lost
    assert days == {
        "2026-11-18": [],
        "2026-11-19": ["1", "3"],
        DAY: ["2", "4", "6"],
        "2026-11-21": ["5"],
    }


@pytest.mark.parametrize("kind", ["parquet", "gzip", "ragged"])
def test_a_broken_file_fails_alone_and_says_why(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "logs" / DAY
    form = "parquet" if kind == "parquet" else "csv"
    frame = pl.DataFrame({"impression_id": [str(n) for n in range(9_000)]})
    name = {"parquet": "b.parquet", "gzip": "b.csv.gz", "ragged": "b.csv"}[kind]
    for good in ("a", "c"):
        path = folder / name.replace("b", good, 1)
        path.parent.mkdir(parents=True, exist_ok=True)
        if form == "parquet":
            frame.write_parquet(path)
        else:
            text = frame.write_csv().encode()
            path.write_bytes(gzip.compress(text) if kind == "gzip" else text)
    bad = folder / name
    bad.write_bytes((folder / name.replace("b", "a", 1)).read_bytes())
    if kind == "ragged":
        bad.write_text("impression_id\n1\n2,3,4\n")
    else:
        os.truncate(bad, bad.stat().st_size // 2)
    mapping = impressions("logs/{day}", format=form, columns=())
    read = read_day(run_of(tmp_path, mapping), "impressions", DAY)
    assert read.frame.height == 18_000
    assert [p.name[0] for p in read.files] == ["a", "c"]
    ((path, reason),) = read.broken
    assert path == bad
    assert reason


def test_a_value_that_an_expression_cannot_take_is_null_and_its_row_stays(tmp_path: Path) -> None:
    rows = [f"{n},{'x' if n in (17, 480) else n},1795132800" for n in range(500)]
    write(tmp_path / f"{DAY}.csv", "impression_id,user,when\n" + "\n".join(rows) + "\n")
    strict = (("user_id", 'CAST("user" AS BIGINT)'), *COLUMNS[1:])
    run = run_of(tmp_path, impressions("{day}.csv", columns=strict))
    read = read_day(run, "impressions", DAY)
    assert not read.broken
    assert read.frame.height == 500
    assert read.frame.filter(pl.col("user_id").is_null())["impression_id"].to_list() == [
        "17",
        "480",
    ]
    assert read.frame["user_id"].sum() == 500 * 499 // 2 - 17 - 480


def test_changed_schemas_are_told_and_do_not_stop_the_day(tmp_path: Path) -> None:
    folder = tmp_path / DAY
    folder.mkdir()
    pl.DataFrame({"impression_id": [1], "user_id": [3], "click": [1]}).write_parquet(
        folder / "a.parquet"
    )
    pl.DataFrame({"impression_id": [2], "user_id": ["x9"], "position": [0]}).write_parquet(
        folder / "b.parquet"
    )
    mapping = TableMapping(table="impressions", path="{day}/*.parquet")
    read = read_day(run_of(tmp_path, mapping), "impressions", DAY)
    assert [part["user_id"].to_list() for part in read.parts] == [[3], ["x9"]]
    assert [part.columns for part in read.parts] == [
        ["impression_id", "user_id", "click"],
        ["impression_id", "user_id", "position"],
    ]
    (change,) = read.changes
    assert change == (
        "b.parquet against a.parquet: "
        "missing ['click'], new ['position'], other type ['user_id (Int64 to String)']"
    )


def test_an_expression_over_a_column_that_a_file_lacks_breaks_that_file(tmp_path: Path) -> None:
    write(tmp_path / DAY / "a.csv", LINES)
    write(tmp_path / DAY / "b.csv", "impression_id,when\n9,1\n")
    read = read_day(run_of(tmp_path, impressions("{day}")), "impressions", DAY)
    assert read.frame.height == 2
    assert "user" in read.broken[0][1]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ((("user_id", "CAST("),), r"columns\.user_id must be a polars SQL expression"),
        ((("usr_id", '"user"'),), r"columns\.usr_id is no canonical column"),
    ],
)
def test_a_wrong_mapping_is_a_config_error(
    tmp_path: Path, columns: tuple[tuple[str, str], ...], message: str
) -> None:
    write(tmp_path / f"{DAY}.csv", LINES)
    with pytest.raises(ConfigError, match=message):
        read_day(run_of(tmp_path, impressions("{day}.csv", columns=columns)), "impressions", DAY)


def test_a_table_that_the_source_lacks_is_an_error_and_a_day_without_files_is_empty(
    tmp_path: Path,
) -> None:
    run = run_of(tmp_path, impressions("{day}.csv"))
    with pytest.raises(ConfigError, match=r"source\.tables must map engagements"):
        read_day(run, "engagements", DAY)
    read = read_day(run, "impressions", DAY)
    assert (read.parts, read.files, read.broken) == ([], [], [])


def test_files_are_sorted_and_hidden_ones_left_out(tmp_path: Path) -> None:
    for name in ("b.csv", "a.csv", ".hidden.csv", "_SUCCESS.csv", "notes.md"):
        write(tmp_path / DAY / name, LINES)
    mapping = impressions("{day}")
    found = files_of(run_of(tmp_path, mapping), mapping, DAY)
    assert [p.name for p in found] == ["a.csv", "b.csv"]
