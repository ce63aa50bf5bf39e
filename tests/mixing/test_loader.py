from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from plane_world import FEATURES, OBJECTIVES, SURFACES, landed_run, run_plane, toy_config

from benchmarks._rowwise import row_batches
from model.batch import Batch
from pipeline.mixing.canonical import read_bucket, window_impressions
from pipeline.mixing.hashing import table_row
from pipeline.mixing.loader import BatchAssembler, Loader
from pipeline.mixing.packing import ACTION_ID_BASE, dense_values
from pipeline.mixing.prefetch import prefetched
from pipeline.run.errors import ConfigError, ContractError, DataError
from pipeline.run.paths import Run
from pipeline.run.window import HOUR_US, window_of

TABLES = {t.name: t.buckets for t in FEATURES.tables}
DELAYS = {"shown": 600, "organic": 60}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    made = landed_run(tmp_path_factory.mktemp("home"))
    run_plane(made)
    return made


def everything(run: Run, table: str) -> list[dict[str, Any]]:
    paths = sorted(run.lake("canonical", table).rglob("bucket=*.parquet"))
    frame = pl.concat([pl.read_parquet(p) for p in paths]).sort("ts", maintain_order=True)
    return frame.with_columns(pl.col("ts").dt.epoch("us")).to_dicts()


def row_id(table: str, value: int) -> int:
    return int(table_row(np.array([value]), TABLES[table])[0])


def naive_events(
    events: list[dict[str, Any]], kind: str, user: int, ts: int
) -> list[dict[str, Any]]:
    delay = DELAYS[kind] * 1_000_000
    return [e for e in events if e["user_id"] == user and e["ts"] + delay < ts]


def naive_ids(kind: str, event: dict[str, Any]) -> list[int]:
    if kind == "organic":
        return [row_id("category", event["category_id"])]
    return [
        row_id("ad", event["ad_id"]),
        row_id("surface", SURFACES.index(event["surface"])),
        row_id("surface", ACTION_ID_BASE + event["click"]),
    ]


def check_row(
    run: Run, batch: Batch, b: int, source: dict[str, Any], logs: dict[str, list[dict[str, Any]]]
) -> None:
    """Row `b` of a batch against what a plain loop makes of the impression `source`."""
    user, ts = source["user_id"], source["ts"]
    expected = [
        row_id("user", user),
        row_id("color", source["color"]),
        row_id("ad", source["ad_id"]),
        row_id("category", source["category_id"]),
        row_id("surface", SURFACES.index(source["surface"])),
    ]
    assert batch.ids_BF[b].tolist() == expected
    dense = [source["mood"], np.log1p(source["price"])]
    for match in FEATURES.matches:
        seen = naive_events(logs[match.event], match.event, user, ts)
        same = [e for e in seen if e[match.key] == source[match.key]]
        dense += [np.log1p(len(same)), np.log1p(sum(e.get("click", 1) for e in same))]
    assert batch.dense_BC[b].tolist() == pytest.approx(dense, rel=1e-6)
    for event in FEATURES.events:
        seen = naive_events(logs[event.name], event.name, user, ts)[-event.max_len :]
        got = batch.events[event.name]
        begin = int(got.lengths_B[:b].sum())
        mine = slice(begin, begin + int(got.lengths_B[b]))
        assert got.lengths_B[b] == len(seen)
        assert got.ids_EA[mine].tolist() == [naive_ids(event.name, e) for e in seen]
        ages = [(ts - e["ts"]) / 1e6 for e in seen]
        gaps = [0.0, *np.diff([e["ts"] / 1e6 for e in seen])][: len(seen)]
        assert got.age_E[mine].tolist() == pytest.approx(ages, rel=1e-5)
        assert got.gap_E[mine].tolist() == pytest.approx(gaps, rel=1e-4, abs=1e-3)


@pytest.mark.parametrize("selection", ["train", "holdout", "log"])
def test_batches_equal_a_loop_over_rows(run: Run, selection: Any) -> None:
    loader = Loader(run, selection, batch_size=64)
    logs = {"shown": everything(run, "impressions"), "organic": everything(run, "engagements")}
    by_id = {e["impression_id"]: e for e in logs["shown"]}
    assert loader.num_rows > 64
    for index in {0, loader.num_batches - 1}:
        batch = loader.batch(index)
        for b in range(0, batch.num_rows, 7):
            n = int(batch.row_B[b])
            assert n == index * 64 + b
            source = by_id[loader.columns["impression_id"][n]]
            assert loader.columns["ts_us"][n] == source["ts"]
            check_row(run, batch, b, source, logs)
            assert batch.surface_B[b] == SURFACES.index(source["surface"])
            for k, o in enumerate(OBJECTIVES):
                assert batch.mask_BK[b, k] == float(loader.columns[f"m_{o.name}"][n])
                assert batch.labels_BK[b, k] == float(loader.columns[f"y_{o.name}"][n])
                assert batch.weight_BK[b, k] == loader.columns[f"w_{o.name}"][n]


def test_types_and_shapes(run: Run) -> None:
    batch = Loader(run, batch_size=32).batch(0)
    assert batch.ids_BF.shape == (32, 5)
    assert batch.dense_BC.shape == (32, len(FEATURES.dense_columns))
    assert batch.ids_BF.dtype == batch.events["shown"].ids_EA.dtype == torch.int64
    assert batch.dense_BC.dtype == batch.labels_BK.dtype == torch.float32
    assert batch.events["shown"].ids_EA.shape[0] == batch.events["shown"].lengths_B.sum()


def test_order_is_label_time_and_any_start_continues_it(run: Run) -> None:
    loader = Loader(run, batch_size=50)
    assert (np.diff(loader.columns["label_us"]) >= 0).all()
    whole = list(loader.batches())
    assert len(whole) == loader.num_batches
    rest = list(Loader(run, batch_size=50).batches(start=2))
    assert len(rest) == len(whole) - 2
    for a, b in zip(whole[2:], rest, strict=True):
        assert torch.equal(a.row_B, b.row_B)
        assert torch.equal(a.ids_BF, b.ids_BF)
        assert torch.equal(a.events["shown"].ids_EA, b.events["shown"].ids_EA)
    assert sum(b.num_rows for b in whole) == loader.num_rows


def test_bounds_are_on_the_label_time(run: Run) -> None:
    window = window_of(run.config)
    begin, end = window.train_begin + 20 * HOUR_US, window.cut - 6 * HOUR_US
    loader = Loader(run, begin_us=begin, end_us=end, batch_size=50)
    full = Loader(run, batch_size=50)
    label = full.columns["label_us"]
    assert loader.num_rows == ((label >= begin) & (label < end)).sum() > 0
    empty = Loader(run, end_us=0, batch_size=50)
    assert empty.num_rows == empty.num_batches == 0
    assert list(empty.batches()) == []


def test_file_order_and_no_events(run: Run) -> None:
    loader = Loader(run, batch_size=50, order="none", events=False)
    assert (np.diff(loader.columns["bucket"]) >= 0).all()
    assert loader.batch(0).events == {}


def test_students_see_their_features_alone(run: Run) -> None:
    features = FEATURES.for_students()
    batch = Loader(run, "log", batch_size=8, features=features).batch(0)
    assert batch.ids_BF.shape[1] == len(features.sparse) == 4
    assert batch.dense_BC.shape[1] == 1


def test_ad_hoc_rows_equal_the_loader(run: Run) -> None:
    loader = Loader(run, "log", batch_size=40)
    batch = loader.batch(1)
    rows = slice(40, 80)
    picked = pl.DataFrame(
        {
            "impression_id": loader.columns["impression_id"][rows],
            "ts_us": loader.columns["ts_us"][rows],
        }
    )
    parts = window_impressions(run)
    columns = ["impression_id", "user_id", "ad_id", "category_id", "color", "mood", "price"]
    known = pl.concat([read_bucket(parts, b, [*columns, "surface"]) for b in (0, 1)])
    known = known.with_columns(
        pl.col("surface").replace_strict(dict(zip(SURFACES, (0, 1), strict=True)))
    )
    frame = picked.join(known, on="impression_id", how="left", maintain_order="left")
    made = BatchAssembler(run).assemble(frame)
    assert torch.equal(made.ids_BF, batch.ids_BF)
    assert torch.equal(made.dense_BC, batch.dense_BC)
    assert torch.equal(made.surface_B, batch.surface_B)
    for name, events in batch.events.items():
        assert torch.equal(made.events[name].lengths_B, events.lengths_B)
        assert torch.equal(made.events[name].ids_EA, events.ids_EA)
        assert torch.equal(made.events[name].age_E, events.age_E)
    assert made.mask_BK.sum() == 0
    with pytest.raises(DataError, match="mood"):
        BatchAssembler(run).assemble(frame.drop("mood"))


def test_values_that_are_not_finite_are_refused() -> None:
    frame = pl.DataFrame({n: [0.0, float("nan")] for n in FEATURES.dense_columns})
    with pytest.raises(ContractError, match="mood"):
        dense_values(FEATURES, frame)
    minus = dense_values(FEATURES, pl.DataFrame({n: [-5.0] for n in FEATURES.dense_columns}))
    assert minus[0, :3].tolist() == [-5.0, 0.0, 0.0]  # the logarithm starts at 0


def test_bad_arguments_and_a_missing_mix(run: Run, tmp_path: Any) -> None:
    with pytest.raises(ConfigError, match="selection"):
        Loader(run, "test", batch_size=8)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="batch_size"):
        Loader(run, batch_size=0)
    copy = tmp_path / "runs" / "day" / "run"
    shutil.copytree(run.folder, copy)
    shutil.rmtree(copy / "mix")
    with pytest.raises(DataError, match="mix"):
        Loader(Run(folder=copy, config=run.config), batch_size=8)


def test_prefetching_hands_over_errors_and_ends_its_thread() -> None:
    def make(i: int) -> int:
        if i == 3:
            raise ValueError("third")
        return i

    with pytest.raises(ValueError, match="third"):
        list(prefetched(make, range(10)))
    items: Iterator[int] = prefetched(lambda i: i, range(1_000))
    assert next(items) == 0
    items.close()  # type: ignore[attr-defined]
    assert "prefetch" not in [t.name for t in threading.enumerate()]


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run with buckets for several ranks."""
    window = replace(toy_config().window, num_buckets=6)
    made = landed_run(tmp_path_factory.mktemp("wide"), toy_config(window=window))
    run_plane(made)
    return made


def identity(loader: Loader) -> list[tuple[int, ...]]:
    names = ("bucket", "g", "label_us", "m_click")
    return list(zip(*(loader.columns[n].tolist() for n in names), strict=True))


@pytest.mark.parametrize("selection", ["train", "holdout"])
@pytest.mark.parametrize("order", ["time", "none"])
def test_ranks_share_out_the_rows(wide: Run, selection: Any, order: Any) -> None:
    whole = Loader(wide, selection, batch_size=64, order=order)
    for world_size in (2, 3, 6):
        ranks = [
            Loader(wide, selection, batch_size=64, order=order, rank=r, world_size=world_size)
            for r in range(world_size)
        ]
        assert sorted(i for r in ranks for i in identity(r)) == sorted(identity(whole))
        assert {r.num_batches for r in ranks} == {whole.num_batches}
        buckets = [set(r.columns["bucket"].tolist()) for r in ranks]
        assert sum(len(b) for b in buckets) == len(set().union(*buckets)) == 6
        rows = [r.batch(i).row_B.tolist() for r in ranks for i in range(r.num_batches)]
        assert sum(len(b) for b in rows) == whole.num_rows
        # a rank keeps the events of its own buckets alone
        events = [len(r._packs["shown"].ts_E) for r in ranks]
        assert sum(events) == len(whole._packs["shown"].ts_E)


def test_a_rank_reads_what_one_rank_reads_and_can_start_anywhere(wide: Run) -> None:
    whole = Loader(wide, batch_size=64)
    place = {row: n for n, row in enumerate(identity(whole))}
    loader = Loader(wide, batch_size=64, rank=1, world_size=2)
    again = Loader(wide, batch_size=64, rank=1, world_size=2)
    rest = list(again.batches(start=2))
    assert len(rest) == loader.num_batches - 2 > 0
    for index, batch in enumerate(rest, start=2):
        same = loader.batch(index)
        assert torch.equal(batch.row_B, same.row_B)
        assert torch.equal(batch.events["shown"].ids_EA, same.events["shown"].ids_EA)
        for b in range(0, batch.num_rows, 5):
            n = place[identity(loader)[int(batch.row_B[b])]]
            assert torch.equal(whole.rows(n, n + 1).ids_BF[0], batch.ids_BF[b])
            assert torch.equal(whole.rows(n, n + 1).dense_BC[0], batch.dense_BC[b])
            lengths = batch.events["shown"].lengths_B
            begin = int(lengths[:b].sum())
            one = whole.rows(n, n + 1).events["shown"]
            assert torch.equal(
                one.ids_EA, batch.events["shown"].ids_EA[begin : begin + int(lengths[b])]
            )


def test_wrong_ranks_are_refused(wide: Run) -> None:
    with pytest.raises(ConfigError, match=r"world_size must be at most window\.num_buckets, got 7"):
        Loader(wide, batch_size=64, world_size=7)
    with pytest.raises(ConfigError, match=r"rank must be in \[0, 2\), got 2"):
        Loader(wide, batch_size=64, rank=2, world_size=2)
    with pytest.raises(ConfigError, match="world_size must be at least 1"):
        Loader(wide, batch_size=64, world_size=0)


def test_the_benchmarks_row_wise_loader_makes_the_same_batches(run: Run) -> None:
    loader = Loader(run, batch_size=50)
    theirs = row_batches(loader)(range(loader.num_batches))
    for ours, rowwise in zip(loader.batches(), theirs, strict=True):
        for name in ("ids_BF", "dense_BC", "surface_B", "labels_BK", "mask_BK", "row_B"):
            assert torch.equal(getattr(ours, name), getattr(rowwise, name)), name
        for name, events in ours.events.items():
            for part in ("ids_EA", "lengths_B", "gap_E", "age_E"):
                assert torch.equal(getattr(events, part), getattr(rowwise.events[name], part))


def test_shared_rows_tell_each_history_once(run: Run) -> None:
    loader = Loader(run, "log", batch_size=40)
    parts = window_impressions(run)
    columns = ["user_id", "ad_id", "category_id", "color", "mood", "price", "surface"]
    known = pl.concat([read_bucket(parts, b, columns) for b in (0, 1)]).head(6)
    known = known.with_columns(
        pl.col("surface").replace_strict(dict(zip(SURFACES, (0, 1), strict=True))),
        pl.lit(int(loader.columns["ts_us"][-1])).alias("ts_us"),
    )
    # every user's row with the ads of all rows: a user's own features stay, the ads' change
    of_ads = [f.name for f in FEATURES.sparse if f.scope == "ad"]
    frame = known.drop(of_ads).join(known.select(of_ads), how="cross")
    assembler = BatchAssembler(run)
    alone, (shared, sharing) = assembler.assemble(frame), assembler.assemble_shared(frame)
    assert torch.equal(shared.ids_BF, alone.ids_BF)
    assert torch.equal(shared.dense_BC, alone.dense_BC)
    assert len(sharing.first_U) <= 6 < len(sharing.owner_B) == len(frame)
    assert torch.equal(sharing.owner_B[sharing.first_U], torch.arange(len(sharing.first_U)))
    for name, events in alone.events.items():
        lengths = shared.events[name].lengths_B
        assert len(lengths) == len(sharing.first_U)
        assert torch.equal(lengths[sharing.owner_B], events.lengths_B)
