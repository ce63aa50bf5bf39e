"""Small hostile days, drawn at random: every row is accounted for, and stages are idempotent."""

from __future__ import annotations

import datetime as dt
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plane_world import (
    LAST,
    impressions,
    land_frame,
    shifted,
    toy_config,
    toy_run,
)

from pipeline.mixing.ingest import ingest
from pipeline.mixing.labels import labels
from pipeline.run.config import SourceConfig
from pipeline.run.manifest import MANIFEST, need_manifest
from pipeline.run.paths import Run
from pipeline.run.presets import landed
from pipeline.run.window import day_begin_us

YESTERDAY = shifted(LAST, -1)
UTC_US = pl.Datetime("us", "UTC")
# what may be wrong with an impression, by column; None is a row without a flaw
FLAWS = {
    "user_id": None,
    "ts": dt.datetime(2026, 3, 9, tzinfo=dt.UTC),
    "click": 2,
    "surface": "billboard",
    "mood": float("nan"),
    "ad_id": -5,
    "color": "x" * 1_000,
}
BOUGHT_FLAWS = {"user_id": None, "kind": "gift", "ts": None, "value": float("inf")}
# few ids, so that most days have an impression twice, with and without a flaw
ROW = st.tuples(st.one_of(st.none(), st.sampled_from([*FLAWS])), st.integers(0, 4))
ROWS = st.lists(ROW, min_size=1, max_size=12)
# of which impression, how many hours after it, what is wrong, which of its ids are left out
SALE = st.tuples(
    st.integers(0, 11),
    st.integers(-2, 40),
    st.one_of(st.none(), st.sampled_from([*BOUGHT_FLAWS])),
    st.sampled_from([(), ("impression_id",), ("impression_id", "ad_id")]),
)
SALES = st.lists(SALE, max_size=10)
Rows = list[tuple[str | None, int]]
Sales = list[tuple[int, int, str | None, tuple[str, ...]]]


def shown_frame(day: str, rows: Rows) -> pl.DataFrame:
    """Impressions with the flaws of `rows`; each has the id of the row that it names."""
    frame = impressions(day, len(rows))
    spoilt = [
        pl.Series(name, values, dtype=frame.schema[name])
        for name, bad in FLAWS.items()
        for values in [
            [bad if flaw == name else v for v, (flaw, _) in zip(frame[name], rows, strict=True)]
        ]
    ]
    ids = frame["impression_id"][[place % len(rows) for _, place in rows]]
    return frame.with_columns(spoilt).with_columns(ids)


def bought_frame(sales: Sales) -> pl.DataFrame:
    """Conversions of yesterday's impressions, flawed where `sales` says so."""
    shown = impressions(YESTERDAY, 12)
    kinds = {n: shown.schema[n] for n in ("impression_id", "user_id", "ad_id")}
    schema = {**kinds, "kind": pl.String(), "ts": UTC_US, "value": pl.Float64()}
    rows = []
    for place, hours, flaw, left_out in sales:
        one = shown.row(place, named=True)
        sale = {n: one[n] for n in kinds} | {"kind": "conversion", "value": 1.0}
        sale["ts"] = one["ts"] + dt.timedelta(hours=hours)
        rows.append(sale | dict.fromkeys(left_out) | ({flaw: BOUGHT_FLAWS[flaw]} if flaw else {}))
    return pl.DataFrame(rows, schema=schema)


def land_day(run: Run, rows: Rows, sales: Sales, *, broken: bool, backwards: bool) -> None:
    """Yesterday without a flaw, today with those of `rows`, the sales on the days they came."""
    shown = shown_frame(LAST, rows)
    path = land_frame(run, "impressions", LAST, shown.reverse() if backwards else shown)
    if broken:
        path.with_name("part-1.parquet").write_bytes(path.read_bytes()[:200])
    land_frame(run, "impressions", YESTERDAY, impressions(YESTERDAY, 12))
    bought = bought_frame(sales)
    todays = (pl.col("ts") >= pl.lit(day_begin_us(LAST)).cast(UTC_US)).fill_null(True)
    land_frame(run, "conversions", LAST, bought.filter(todays))
    land_frame(run, "conversions", YESTERDAY, bought.filter(~todays))


@contextmanager
def run_of(rows: Rows, sales: Sales, *, broken: bool, backwards: bool) -> Iterator[Run]:
    source = SourceConfig(name="toy", tables=landed("impressions", "conversions"))
    config = toy_config(source=source)
    window = replace(config.window, bootstrap_days=2)
    with TemporaryDirectory(prefix="headwater-test-") as home:
        run = toy_run(Path(home), replace(config, window=window))
        land_day(run, rows, sales, broken=broken, backwards=backwards)
        yield run


def entries(run: Run, table: str, day: str) -> list[dict]:
    paths = [run.output("ingest", u) / "ledger.json" for u in units(run)]
    found = [e for p in paths for e in json.loads(p.read_text())["entries"]]
    return [e for e in found if (e["table"], e["day"]) == (table, day)]


def units(run: Run) -> tuple[str, ...]:
    return (*run.config.surfaces, "rest")


def rows_on_disk(run: Run, kind: str, table: str, day: str) -> int:
    files = run.lake(kind, table, f"day={day}").rglob("*.parquet")
    return sum(len(pl.read_parquet(f)) for f in files)


def publish(run: Run, order: tuple[str, ...]) -> dict[str, str]:
    """Ingest units in an order, then labels; fingerprints."""
    return {u: ingest(run, u).fingerprint for u in order} | {"labels": labels(run).fingerprint}


def roots(run: Run) -> list[Path]:
    return [run.lake(), run.output("ingest"), run.output("labels")]


def outputs(run: Run) -> list[Path]:
    found = [p for root in roots(run) for p in root.rglob("*") if p.is_file()]
    return sorted(p for p in found if not p.name.startswith("."))  # locks are no output


def contents(run: Run) -> dict[str, object]:
    """Bytes of all files; of manifests, which note how long it took, what is in them but that."""
    found: dict[str, object] = {}
    for path in outputs(run):
        name = str(path.relative_to(run.home))
        if path.name == MANIFEST:
            found[name] = replace(need_manifest(path.parent), seconds=0.0)
        else:
            found[name] = path.read_bytes()
    return found


@settings(max_examples=10, deadline=None)
@given(rows=ROWS, sales=SALES, broken=st.booleans(), backwards=st.booleans())
def test_the_ledger_adds_up_whatever_comes(
    rows: Rows, sales: Sales, broken: bool, backwards: bool
) -> None:
    good = [place % len(rows) for flaw, place in rows if flaw is None]
    with run_of(rows, sales, broken=broken, backwards=backwards) as run:
        for unit in units(run):
            ingest(run, unit)
        shown = entries(run, "impressions", LAST)
        assert sum(e["rows_in"] for e in shown) == len(rows)
        assert sum(e["rows_out"] for e in shown) == len(set(good))
        assert sum(e["duplicates"] for e in shown) == len(good) - len(set(good))
        assert sum(e["quarantined"] for e in shown) == len(rows) - len(good)
        bought = [e for day in (YESTERDAY, LAST) for e in entries(run, "conversions", day)]
        assert (
            sum(e["rows_in"] for e in bought)
            == len(sales)
            == sum(e["rows_out"] + e["quarantined"] for e in bought)
        )
        for entry in (*shown, *bought):
            refused = entry["quarantined"] + entry["duplicates"]
            assert entry["rows_in"] == entry["rows_out"] + refused
            assert sum(entry["reasons"].values()) == refused
        for table, found in (("impressions", shown), ("conversions", bought)):
            days = {e["day"] for e in found}
            kept, refused = (
                sum(rows_on_disk(run, kind, table, day) for day in days)
                for kind in ("canonical", "quarantine")
            )
            assert kept == sum(e["rows_out"] for e in found)
            assert refused == sum(e["quarantined"] + e["duplicates"] for e in found)


@settings(max_examples=6, deadline=None)
@given(rows=ROWS, sales=SALES, broken=st.booleans(), backwards=st.booleans())
def test_stages_are_idempotent_whatever_comes(
    rows: Rows, sales: Sales, broken: bool, backwards: bool
) -> None:
    with run_of(rows, sales, broken=broken, backwards=backwards) as run:
        once = publish(run, units(run))
        made = contents(run)
        written = {p: p.stat().st_mtime_ns for p in outputs(run)}

        def worked(*arguments: object) -> None:
            raise AssertionError("a finished stage did its work again")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("pipeline.mixing.day_pass.split_day", worked)
            patch.setattr("pipeline.mixing.labels.label_bucket", worked)
            assert publish(run, units(run)) == once
        assert {p: p.stat().st_mtime_ns for p in outputs(run)} == written
        for root in roots(run):
            shutil.rmtree(root)
        assert publish(run, units(run)[::-1]) == once
        assert contents(run) == made
