"""Rows, files, columns and disks that are not as they should be."""

from __future__ import annotations

import datetime as dt
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plane_world import (
    LAST,
    engagements,
    impressions,
    ingest_all,
    land_frame,
    landed_run,
    shifted,
    toy_config,
)

from pipeline.mixing import parts
from pipeline.mixing.cleaning import Cleaner, repeated_ids, rules_of
from pipeline.mixing.frames import write_frame
from pipeline.mixing.ingest import ingest
from pipeline.run.errors import EXIT_OK, EXIT_RETRY, ContractError
from pipeline.run.manifest import MANIFEST
from pipeline.run.paths import REPOSITORY, Run

POISON = [
    None,
    "",
    "x" * 10_000_000,
    "NaN",
    "7",
    -1,
    -(2**63),
    2**63 - 1,
    float("nan"),
    float("inf"),
    -float("inf"),
    1e300,
    True,
    b"\xff\x00",
    dt.datetime(1970, 1, 1, tzinfo=dt.UTC),
    dt.datetime(2262, 4, 11, 23, tzinfo=dt.UTC),
    dt.datetime(9999, 12, 31, tzinfo=dt.UTC),
    dt.date(1, 1, 1),
    dt.timedelta(days=1),
    [1, 2],
    {"a": 1},
]
COLUMNS = [*impressions(LAST, 1).columns]


def ledger(run: Run, unit: str, table: str = "impressions", day: str = LAST) -> dict:
    entries = json.loads((run.output("ingest", unit) / "ledger.json").read_text())["entries"]
    return next(e for e in entries if e["table"] == table and e["day"] == day)


def accounted(run: Run) -> dict[str, int]:
    found = [ledger(run, u) for u in (*run.config.surfaces, "rest")]
    names = ("rows_in", "rows_out", "quarantined", "duplicates")
    return {n: sum(e[n] for e in found) for n in names}


@settings(max_examples=40, deadline=None)
@given(
    spoilt=st.lists(
        st.tuples(st.sampled_from(COLUMNS), st.sampled_from([p for p in POISON if p != POISON[2]])),
        max_size=3,
        unique_by=lambda pair: pair[0],
    ),
    copies=st.lists(st.integers(0, 11), max_size=8),
    cut=st.integers(1, 19),
    bad=st.integers(0, 11),
)
def test_every_row_ends_in_one_place(
    spoilt: list[tuple[str, object]], copies: list[int], cut: int, bad: int
) -> None:
    frame = impressions(LAST, 12)
    frame = pl.concat([frame, frame[copies]])
    for column, value in spoilt:
        if isinstance(value, (str, int, float)) and not isinstance(value, bool):
            kind = frame.schema[column] if isinstance(value, float) else pl.String()
            kind = kind if kind.is_float() else pl.String()
            values = frame[column].cast(kind).to_list()
            values[bad] = value if kind.is_float() else str(value)
            frame = frame.with_columns(pl.Series(column, values, dtype=kind))
        else:  # a column that is of another type altogether
            frame = frame.with_columns(pl.Series(column, [value] * len(frame)))
    rules = rules_of(toy_config(), "impressions")
    pieces = [frame[:cut], frame[cut:]]
    cleaner = Cleaner(rules, LAST, frame.columns, repeated_ids(pieces))
    done = [cleaner.part(p) for p in pieces]
    out, rejected = pl.concat([d.frame for d in done]), pl.concat([d.rejected for d in done])
    assert len(out) + len(rejected) == len(frame)
    assert sum(d.came.sum() for d in done) == len(frame)
    assert out["impression_id"].is_unique().all()
    assert not out.null_count().sum_horizontal().item()
    assert (rejected["reason"].str.len_chars() > 0).all()
    assert rejected["row"].null_count() == 0


@pytest.mark.parametrize("column", ["user_id", "ts", "color", "mood", "surface", "impression_id"])
@pytest.mark.parametrize("poison", range(len(POISON)))
def test_no_value_stops_the_day(column: str, poison: int) -> None:
    value = POISON[poison]
    frame = impressions(LAST, 3)
    frame = frame.with_columns(pl.Series(column, [value] * 3, strict=False).alias(column))
    rules = rules_of(toy_config(), "impressions")
    done = Cleaner(rules, LAST, frame.columns, repeated_ids([frame])).part(frame)
    assert len(done.frame) + len(done.rejected) == 3
    assert all(len(r) <= 4_000 for r in done.rejected["row"])


def test_a_poisoned_file_of_ten_megabyte_values_passes_through_the_stage(tmp_path: Path) -> None:
    run = landed_run(tmp_path)
    frame = impressions(LAST, 6).with_columns(
        pl.Series("color", ["red", POISON[2], "blue", "red", "red", "red"]),
        pl.Series("mood", [0.1, 0.2, float("nan"), float("inf"), 0.5, 0.6]),
        pl.Series("user_id", [1, 2, 3, 4, -5, 6]),
    )
    land_frame(run, "impressions", LAST, frame)
    ingest_all(run)
    assert accounted(run) == {"rows_in": 6, "rows_out": 2, "quarantined": 4, "duplicates": 0}


def damage(path: Path, row_group: int, column: str) -> None:
    """Overwrite the head of a column's first page."""
    groups = pq.read_metadata(path).row_group(row_group)
    chunk = groups.column(COLUMNS.index(column))
    assert chunk.path_in_schema == column
    content = bytearray(path.read_bytes())
    begin = min(o for o in (chunk.dictionary_page_offset, chunk.data_page_offset) if o)
    content[begin : begin + 16] = b"\xff" * 16
    path.write_bytes(content)


@pytest.mark.parametrize("column", ["impression_id", "click"])
def test_a_damaged_file_fails_alone_however_late_it_breaks(tmp_path: Path, column: str) -> None:
    run = landed_run(tmp_path, count=50)
    late = land_frame(run, "impressions", LAST, impressions(LAST, 900, seed=8), "late")
    pl.read_parquet(late).write_parquet(late, row_group_size=100)
    damage(late, 8, column)
    ingest_all(run)
    entry = ledger(run, "feed")
    assert [b.split(":")[0] for b in entry["broken_files"]] == ["late.parquet"]
    assert str(tmp_path) not in json.dumps(entry)
    assert accounted(run) == {"rows_in": 50, "rows_out": 50, "quarantined": 0, "duplicates": 0}


def test_columns_that_changed_since_yesterday_are_in_the_ledger(tmp_path: Path) -> None:
    run = landed_run(tmp_path)
    frame = impressions(LAST, 40).with_columns(
        pl.col("price").cast(pl.Float32), pl.lit(1).alias("gender")
    )
    land_frame(run, "impressions", LAST, frame.drop("request_id").rename({"mood": "request_id"}))
    land_frame(run, "engagements", LAST, engagements(LAST, 20).drop("kind"))
    with pytest.raises(ContractError, match="mood"):
        ingest_all(run)
    land_frame(run, "impressions", LAST, frame)
    ingest_all(run)
    before = shifted(LAST, -1)
    (change,) = ledger(run, "feed")["schema_changes"]
    assert change == (
        f"{LAST} against {before}: missing [], new ['gender'], "
        "other type ['price (Float64 to Float32)']"
    )
    (change,) = ledger(run, "rest", "engagements")["schema_changes"]
    assert "missing ['kind']" in change
    assert ledger(run, "feed", day=before)["schema_changes"] == []


def stage_with_limit(run: Run, stage: str, unit: str, most_bytes: int) -> int:
    """The exit code of a stage that may write no file larger than `most_bytes`."""

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))

    command = [sys.executable, "-m", "pipeline", stage, "--run", str(run.folder), "--unit", unit]
    done = subprocess.run(
        command, cwd=REPOSITORY, env=dict(os.environ), preexec_fn=limited, capture_output=True
    )
    return done.returncode


def test_a_full_disk_publishes_nothing_and_asks_for_a_retry(tmp_path: Path) -> None:
    run = landed_run(tmp_path, count=3_000)
    assert stage_with_limit(run, "ingest", "feed", 20_000) == EXIT_RETRY
    assert not (run.output("ingest", "feed") / MANIFEST).exists()
    lake = run.lake("canonical")
    assert not list(lake.rglob("bucket=*.parquet"))
    assert not list(lake.rglob("*.tmp"))
    assert stage_with_limit(run, "ingest", "feed", 10_000_000) == EXIT_OK
    other = landed_run(tmp_path / "other", count=3_000)
    assert ingest(run, "feed").fingerprint == ingest(other, "feed").fingerprint


def test_the_bytes_do_not_depend_on_the_size_of_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prints = []
    for size in (7, 100, 100_000):
        monkeypatch.setattr(parts, "PART_ROWS", size)
        monkeypatch.setattr("pipeline.mixing.frames.ROW_GROUP", 64)
        run = landed_run(tmp_path / str(size))
        extra = impressions(LAST, 200, seed=2)  # overlaps in time: files must be sorted
        land_frame(run, "impressions", LAST, pl.concat([extra, extra[:9]]), "part-1")
        prints.append(ingest_all(run))
        assert accounted(run)["duplicates"] >= 9
        folder = run.lake("canonical", "impressions", f"day={LAST}", "surface=feed")
        for file in folder.glob("*.parquet"):
            assert pl.read_parquet(file)["ts"].is_sorted()
            groups = pq.ParquetFile(file).metadata
            rows = [groups.row_group(i).num_rows for i in range(groups.num_row_groups)]
            assert rows[:-1] == [64] * (len(rows) - 1)
    assert prints[0] == prints[1] == prints[2]


def test_wide_ids_keep_a_dictionary_and_near_ones_differences(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    hashes = rng.integers(0, 2**62, 16)
    frame = pl.DataFrame({"near": np.arange(5_000), "wide": hashes[rng.integers(0, 16, 5_000)]})
    write_frame(tmp_path / "x.parquet", frame)
    group = pq.ParquetFile(tmp_path / "x.parquet").metadata.row_group(0)
    encodings = {group.column(i).path_in_schema: group.column(i).encodings for i in range(2)}
    assert "DELTA_BINARY_PACKED" in encodings["near"]
    assert "RLE_DICTIONARY" in encodings["wide"]
    assert pl.read_parquet(tmp_path / "x.parquet").equals(frame)
