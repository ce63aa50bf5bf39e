from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plane_world import (
    LAST,
    OBJECTIVES,
    SURFACES,
    land_days,
    landed_run,
    run_plane,
    shifted,
    toy_config,
    toy_run,
)

from model.config import Objective
from pipeline.mixing.budget import Candidates, allocate, fill, plan_mix, row_flops
from pipeline.mixing.canonical import read_bucket, window_impressions
from pipeline.mixing.mix import mix
from pipeline.mixing.mix_report import copied_feature_bytes
from pipeline.run.config import MixConfig, Parent
from pipeline.run.errors import ConfigError, DataError
from pipeline.run.manifest import need_manifest
from pipeline.run.paths import REPOSITORY, Run
from pipeline.run.window import HOUR_US, window_of


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    made = landed_run(tmp_path_factory.mktemp("home"), count=400)
    run_plane(made)
    return made


DELAYED_RATE = MixConfig().delayed_rate


def read(run: Run, selection: str) -> pl.DataFrame:
    paths = [run.output("mix") / selection / f"bucket={b}.parquet" for b in (0, 1)]
    return pl.concat([pl.read_parquet(p) for p in paths])


def any_positive(objectives: tuple[Objective, ...], rows: pl.DataFrame) -> np.ndarray:
    """Rows that are positive for a task whose label they carry."""
    each = ((pl.col(f"y_{o.name}") == 1) & pl.col(f"m_{o.name}") for o in objectives)
    return rows.select(pl.any_horizontal(each)).to_series().to_numpy()


def truth(run: Run) -> pl.DataFrame:
    """Every label of the window: impression, surface, label time, y; by way of the label tables."""
    frames = []
    for bucket in (0, 1):
        labels = pl.read_parquet(run.output("labels") / f"bucket={bucket}.parquet")
        ids = read_bucket(window_impressions(run), bucket, ["surface"])
        frames.append(labels.with_columns(ids["surface"]))
    both = pl.concat(frames)
    return pl.concat(
        both.select(
            "impression_id",
            "surface",
            pl.lit(o.name).alias("task"),
            pl.col(f"known_{o.name}").alias("label_us"),
            pl.col(f"y_{o.name}").alias("y"),
        )
        for o in OBJECTIVES
    )


def test_the_mix_costs_at_most_the_reference(run: Run) -> None:
    figures = need_manifest(run.output("mix")).read_figures()
    train = read(run, "train")
    assert figures["flops_mix"] == pytest.approx(row_flops(run.config, train).sum())
    assert 0.95 < figures["flops_ratio"] <= 1.0
    assert figures["reference_surface"] == "feed"
    ledger = figures["ledger"][0]
    assert ledger["rows_in"] == ledger["rows_out"] + ledger["sampled_out"]
    assert ledger["rows_out"] == len(train)
    assert ledger["sampled_out"] > 0


def test_every_positive_in_the_span_is_kept_and_no_label_outside_it(run: Run) -> None:
    window, train, labels = window_of(run.config), read(run, "train"), truth(run)
    assert train["label_us"].min() >= window.train_begin
    assert train["label_us"].max() < window.cut
    for o in OBJECTIVES:
        wanted = labels.filter(
            pl.col("task") == o.name,
            pl.col("y") == 1,
            pl.col("label_us").is_between(window.train_begin, window.cut, closed="left"),
        )
        got = train.filter(pl.col(f"m_{o.name}"), pl.col(f"y_{o.name}") == 1)
        assert len(wanted) > 0
        assert set(wanted["impression_id"]) == set(got["impression_id"])
        assert (got[f"w_{o.name}"] == 1.0).all()


def test_each_label_has_a_row_of_its_own(run: Run) -> None:
    train = read(run, "train")
    assert (train["m_click"] ^ train["m_conversion"]).all()
    clicks = train.filter(pl.col("m_click"))
    assert (clicks["label_us"] == clicks["ts_us"]).all()
    assert (clicks["y_conversion"] == 0).all()
    bought = train.filter(pl.col("m_conversion"))
    assert (bought["label_us"] - bought["ts_us"] == 24 * HOUR_US).all()
    assert not clicks["impression_id"].is_duplicated().any()


def test_weights_undo_the_sampling(run: Run) -> None:
    figures = need_manifest(run.output("mix")).read_figures()["surfaces"]
    train = read(run, "train")
    negative = ~any_positive(OBJECTIVES, train)
    for index, name in enumerate(SURFACES):
        rows = train.filter(pl.Series(negative) & (pl.col("surface") == index))
        for rows_of, rate in ((pl.col("m_click"), 1.0), (~pl.col("m_click"), DELAYED_RATE)):
            weight = rows.filter(rows_of)["w_click"].unique().to_list()
            assert weight == pytest.approx([1 / (figures[name]["rate"] * rate)])
        thinning = np.where(rows["m_click"].to_numpy(), 1.0, DELAYED_RATE)
        considered = rows["w_click"].to_numpy() * thinning
        total = figures[name]["candidates"] - figures[name]["certain"]
        noise = 5 * np.sqrt(total / figures[name]["rate"])
        assert abs(considered.sum() - total) < noise


def test_holdout_and_log_are_unsampled(run: Run) -> None:
    window, labels = window_of(run.config), truth(run)
    holdout, logged = read(run, "holdout"), read(run, "log")
    span = labels.filter(pl.col("label_us").is_between(window.cut, window.day_end, closed="left"))
    assert len(holdout) == len(span)
    assert (holdout["w_conversion"] == 1.0).all()
    since = labels.filter(pl.col("task") == "click", pl.col("label_us") >= window.students_begin)
    assert set(logged["impression_id"]) == set(since["impression_id"])
    assert len(logged) == len(since)
    assert logged["m_click"].all()
    assert not logged["m_conversion"].any()
    assert (logged["label_us"] == logged["ts_us"]).all()


def test_rows_are_sorted_and_pointers_are_right(run: Run) -> None:
    for selection in ("train", "holdout", "log"):
        for bucket in (0, 1):
            path = run.output("mix") / selection / f"bucket={bucket}.parquet"
            rows = pl.read_parquet(path)
            assert rows.equals(rows.sort("label_us", "g"))
            columns = ["impression_id", "user_id", "ad_id", "surface", "ts"]
            source = read_bucket(window_impressions(run), bucket, columns)[rows["g"].to_numpy()]
            for name in ("impression_id", "user_id", "ad_id"):
                assert rows[name].equals(source[name])
            assert [SURFACES[i] for i in rows["surface"]] == source["surface"].to_list()
            assert rows["day"].to_list() == source["ts"].dt.strftime("%Y-%m-%d").to_list()


def test_two_homes_give_equal_fingerprints(tmp_path: Path) -> None:
    first, second = (landed_run(tmp_path / name, count=100) for name in ("a", "b"))
    once = run_plane(first)
    assert run_plane(first) == once
    assert run_plane(second) == once


def test_another_seed_draws_other_negatives(tmp_path: Path) -> None:
    runs = [landed_run(tmp_path, toy_config(mix=MixConfig(seed=s)), count=100) for s in (0, 1)]
    assert runs[0].folder != runs[1].folder
    assert run_plane(runs[0])["mix"] != run_plane(runs[1])["mix"]


def test_a_large_budget_keeps_everything(tmp_path: Path) -> None:
    run = landed_run(tmp_path, toy_config(mix=MixConfig(budget=5.0, delayed_rate=1.0)), count=60)
    run_plane(run)
    figures = need_manifest(run.output("mix")).read_figures()
    assert figures["ledger"][0]["sampled_out"] == 0
    assert (read(run, "train")["w_click"] == 1.0).all()


def test_a_budget_below_the_positives_is_refused(tmp_path: Path) -> None:
    run = landed_run(tmp_path, count=60)
    run_plane(run)
    tight = Run(folder=run.folder, config=replace(run.config, mix=MixConfig(budget=0.01)))
    with pytest.raises(ConfigError, match=r"mix\.budget must be above"):
        mix(tight)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(0, 10_000), min_size=2, max_size=6).filter(any),
    st.floats(0.1, 1.0),
    st.floats(0.0, 0.15),
    st.floats(0.6, 1.0),
)
def test_shares_add_up_within_their_limits(
    count: list[int], alpha: float, floor: float, cap: float
) -> None:
    config = MixConfig(alpha=alpha, floor=floor, cap=cap)
    present = np.array(count) > 0
    if cap * present.sum() < 1:
        with pytest.raises(ConfigError):
            allocate(np.array(count), config)
        return
    shares = allocate(np.array(count), config)
    assert shares.sum() == pytest.approx(1.0)
    assert (shares[~present] == 0).all()
    assert (shares[present] >= floor - 1e-6).all()
    assert (shares <= cap + 1e-6).all()


def test_shares_follow_alpha() -> None:
    shares = allocate(np.array([1_000, 100]), MixConfig(alpha=0.5))
    assert shares[0] / shares[1] == pytest.approx(np.sqrt(10))


def test_what_a_full_surface_leaves_goes_to_the_others() -> None:
    rates = fill(100.0, np.array([0.5, 0.5]), np.array([20.0, 160.0]))
    assert rates.tolist() == [1.0, 0.5]
    assert fill(500.0, np.array([0.5, 0.5]), np.array([20.0, 160.0])).tolist() == [1.0, 1.0]


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0.3, 1.5))
def test_a_plan_never_exceeds_its_budget(seed: int, budget: float) -> None:
    rng = np.random.default_rng(seed)
    rows = Candidates(
        surface=rng.integers(0, 3, 300),
        flops=rng.uniform(1, 100, 300),
        certain=rng.random(300) < 0.02,
        chance=rng.random(300),
    )
    plan = plan_mix(MixConfig(budget=budget), ("a", "b", "c"), rows)
    assert plan.flops_mix <= budget * plan.flops_reference * (1 + 1e-9)
    kept = plan.keeps(rows.surface, rows.certain, rows.chance)
    assert kept[rows.certain].all()


def test_the_next_day_trains_each_label_once(tmp_path: Path) -> None:
    first = landed_run(tmp_path, count=150)
    run_plane(first)
    cut = window_of(first.config).cut
    parent = Parent(day=LAST, folder="runs/x", cut_us=cut, fingerprint="0")
    second = toy_run(tmp_path, toy_config(shifted(LAST, 1), parent=parent))
    land_days(second, (*window_of(first.config).days, second.config.day), 150)
    assert window_of(second.config).days[0] > window_of(first.config).days[0]
    run_plane(second)
    before, after = read(first, "train"), read(second, "train")
    assert after["label_us"].min() >= cut > before["label_us"].max()
    # conversions of impressions that the first run saw, but whose window was open then
    matured = after.filter(pl.col("m_conversion") & (pl.col("ts_us") < cut))
    assert len(matured) > 0
    scored = read(first, "holdout").filter(pl.col("m_click") & (pl.col("y_click") == 1))
    assert set(scored["impression_id"]) <= set(after.filter("m_click")["impression_id"])


def test_stages_of_the_plane_load_neither_torch_nor_pandas() -> None:
    modules = ("ingest", "labels", "timeline", "mix")
    text = "import sys; " + "; ".join(f"import pipeline.mixing.{m}" for m in modules)
    text += "; sys.exit(any(m in sys.modules for m in ('torch', 'pandas')))"
    assert subprocess.run([sys.executable, "-c", text], cwd=REPOSITORY).returncode == 0


def test_mixing_loads_no_pandas_on_the_way(run: Run) -> None:
    made = toy_run(run.home, replace(run.config, mix=MixConfig(seed=5)))
    run_plane(made)
    shutil.rmtree(made.output("mix"))
    text = (
        "import sys; from pipeline.mixing.mix import mix; from pipeline.run.paths import open_run; "
        f"mix(open_run({str(made.folder)!r})); sys.exit('pandas' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", text], cwd=REPOSITORY).returncode == 0


def test_labels_of_other_impressions_are_refused(tmp_path: Path) -> None:
    made = landed_run(tmp_path, count=60)
    run_plane(made)
    shutil.rmtree(made.output("mix"))
    path = made.output("labels") / "bucket=1.parquet"
    pl.read_parquet(path)[1:].write_parquet(path)
    with pytest.raises(DataError, match="run the labels and timelines stages again"):
        mix(made)


def test_the_report_counts_what_was_written(run: Run) -> None:
    figures, train = need_manifest(run.output("mix")).read_figures(), read(run, "train")
    assert figures["feature_bytes_copied"] == 0
    assert [line["surface"] for line in figures["table"]] == list(SURFACES)
    assert sum(line["flops_share"] for line in figures["table"]) == pytest.approx(1, abs=1e-3)
    for index, name in enumerate(SURFACES):
        rows = train.filter(pl.col("surface") == index, pl.col("m_click"))
        weight = rows["w_click"].to_numpy().astype(float)
        found = figures["surfaces"][name]["objectives"]["click"]
        assert found["positives"] == rows["y_click"].sum()
        assert found["effective"] == pytest.approx(weight.sum() ** 2 / (weight**2).sum())
        assert found["rate"] == pytest.approx((weight * rows["y_click"]).sum() / weight.sum())


def test_copied_features_would_be_counted(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "train" / "bucket=0.parquet"
    path.parent.mkdir()
    read(run, "train").with_columns(mood=pl.lit(0.5)).write_parquet(path)
    assert copied_feature_bytes(tmp_path, run.config.features) > 0


@pytest.fixture(scope="module")
def shifted_run(run: Run) -> Run:
    """The same day with the logit shift and balanced conversions, in the same lake."""
    changed = replace(run.config.mix, correction="shift", conversion_balance=0.9)
    made = toy_run(run.home, replace(run.config, mix=changed))
    run_plane(made)
    return made


def test_a_shift_takes_the_place_of_weights(run: Run, shifted_run: Run) -> None:
    weighted, train = read(run, "train"), read(shifted_run, "train")
    assert train["impression_id"].equals(weighted["impression_id"])
    assert (train["w_click"] == 1).all()
    negative = ~any_positive(OBJECTIVES, weighted)
    implied = np.log(weighted["w_click"].to_numpy()[negative])
    assert train["shift"].to_numpy()[negative] == pytest.approx(implied, abs=1e-5)
    surfaces = need_manifest(run.output("mix")).read_figures()["surfaces"]
    clicks = train.filter(pl.col("m_click"), pl.col("y_click") == 1)
    expected = [-np.log(surfaces[SURFACES[i]]["rate"]) for i in clicks["surface"]]
    assert clicks["shift"].to_numpy() == pytest.approx(expected, abs=1e-5)
    for selection in ("holdout", "log"):
        assert (read(shifted_run, selection)["shift"] == 0).all()


def test_balance_weighs_conversions_alone(run: Run, shifted_run: Run) -> None:
    train = read(shifted_run, "train")
    factors = need_manifest(shifted_run.output("mix")).read_figures()["conversion_balance"]
    bought = train.filter(pl.col("m_conversion"))
    expected = np.array(factors["conversion"])[bought["surface"].to_numpy()]
    assert bought["w_conversion"].to_numpy() == pytest.approx(expected, rel=1e-5)
    positives = bought.filter(pl.col("y_conversion") == 1)
    assert positives["w_conversion"].sum() == pytest.approx(len(positives), rel=1e-4)
    assert factors["conversion"][1] > 1 > factors["conversion"][0]
    assert (read(run, "train").filter(pl.col("y_conversion") == 1)["w_conversion"] == 1).all()


def test_mixing_again_gives_the_same_bytes(run: Run) -> None:
    before = need_manifest(run.output("mix"))
    shutil.rmtree(run.output("mix"))
    again = mix(run, "")
    assert {f.path: f.sha256 for f in again.files} == {f.path: f.sha256 for f in before.files}
    assert again.figures == before.figures
