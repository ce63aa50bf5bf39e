from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_contracts.schema import TABLES, impressions_with
from pipeline.mixing.synthetic import DENSE, SPARSE, TRUTH, generate_day
from pipeline.mixing.synthetic_day import CLICK_RATES, deliver
from pipeline.mixing.synthetic_world import DRIFT, users_of
from pipeline.run.config import RunConfig, with_overrides
from pipeline.run.errors import ConfigError
from pipeline.run.planted import PLANTED_SURFACES, PlantedConfig
from pipeline.run.presets import planted, preset
from pipeline.run.window import DAY_US, HOUR_US, day_begin_us

DAY = "2026-11-20"
NUMBER = day_begin_us(DAY) // DAY_US
SMALL = planted("small").source.planted
ALL = (*TABLES, "truth")


def tiny(**more: int) -> RunConfig:
    settings = {"rows_per_day": 2_000, "users": 150, "ads": 60, "categories": 6, **more}
    names = {f"source.planted.{k}": v for k, v in settings.items()}
    return with_overrides(preset(DAY, "smoke"), names)


def part(landing: Path, table: str, day: str = DAY) -> Path:
    return landing / table / f"day={day}" / "part-0.parquet"


def frame(landing: Path, table: str, day: str = DAY) -> pl.DataFrame:
    return pl.read_parquet(part(landing, table, day), hive_partitioning=False)


@pytest.fixture(scope="module")
def landing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small day as the default preset makes it."""
    folder = tmp_path_factory.mktemp("landing")
    generate_day(preset(DAY, "small"), DAY, folder)
    return folder


@cache
def small_world() -> PlantedConfig:
    assert SMALL is not None
    return SMALL


def entropy(p: np.ndarray) -> np.ndarray:
    return -(p * np.log(p) + (1 - p) * np.log(1 - p))


def bayes_ne(p: np.ndarray) -> float:
    return float(entropy(p).mean() / entropy(p.mean()))


def test_same_seed_same_bytes_whatever_other_days_were_made(tmp_path: Path) -> None:
    config, sold = tiny(), {}
    generate_day(config, DAY, tmp_path / "alone")
    for day in ("2026-11-17", "2026-11-19", DAY):
        generate_day(config, day, tmp_path / "row", sold=sold)
    for table in ALL:
        alone, row = part(tmp_path / "alone", table), part(tmp_path / "row", table)
        assert alone.read_bytes() == row.read_bytes(), table


def test_another_seed_is_another_world(tmp_path: Path) -> None:
    generate_day(tiny(), DAY, tmp_path / "a")
    generate_day(tiny(seed=1), DAY, tmp_path / "b")
    a, b = frame(tmp_path / "a", "impressions"), frame(tmp_path / "b", "impressions")
    assert not a["user_id"].head(200).equals(b["user_id"].head(200))


@pytest.mark.parametrize("table", ALL)
def test_files_have_the_canonical_schema_in_time_order_without_nulls(
    landing: Path, table: str
) -> None:
    wanted = {"impressions": impressions_with(SPARSE, DENSE), "truth": TRUTH}.get(table)
    wanted = wanted if wanted is not None else TABLES[table]
    found = pq.ParquetFile(part(landing, table)).schema_arrow
    assert found.remove_metadata().equals(wanted)
    rows = frame(landing, table)
    assert rows.null_count().sum_horizontal().item() == 0
    if "ts" in rows.columns:
        ts = rows["ts"].dt.epoch("us")
        assert ts.is_sorted()
        assert day_begin_us(DAY) <= ts.min() <= ts.max() < day_begin_us(DAY) + DAY_US


def test_the_preset_declares_what_the_generator_writes() -> None:
    features = preset(DAY, "small").features
    columns = set(impressions_with(SPARSE, DENSE).names)
    assert {f.name for f in (*features.sparse, *features.dense)} <= columns
    assert {f.name for f in features.dense} == set(DENSE)


def test_truth_is_one_row_per_impression_and_nowhere_else(landing: Path) -> None:
    impressions, truth = frame(landing, "impressions"), frame(landing, "truth")
    assert truth.select("impression_id", "user_id").equals(
        impressions.select("impression_id", "user_id")
    )
    for table in TABLES:
        assert not [c for c in frame(landing, table).columns if c.startswith("p_")]


def test_click_rates_shares_and_size_are_as_planned(landing: Path) -> None:
    rows = frame(landing, "impressions").join(frame(landing, "truth"), on="impression_id")
    assert abs(rows.height / small_world().rows_per_day - 1) < 0.1
    for surface, share, rate in zip(
        PLANTED_SURFACES, small_world().shares, CLICK_RATES, strict=True
    ):
        here = rows.filter(pl.col("surface") == surface)
        assert abs(here.height / rows.height - share) < 0.03
        assert here["p_click"].mean() == pytest.approx(rate, rel=1e-6)
        noise = math.sqrt(rate / here.height)
        assert abs(here["click"].mean() - rate) < 4 * noise  # type: ignore[operator]


def test_bayes_ne_of_click_is_in_its_band(landing: Path) -> None:
    truth = frame(landing, "truth")
    assert 0.75 < bayes_ne(truth["p_click"].to_numpy()) < 0.82
    assert 0.001 < truth["p_conversion"].mean() < 0.005  # type: ignore[operator]
    assert bayes_ne(truth["p_conversion"].to_numpy()) < 0.9


def test_labels_follow_the_truth(landing: Path) -> None:
    rows = frame(landing, "impressions").join(frame(landing, "truth"), on="impression_id")
    for low, high in ((0.0, 0.01), (0.01, 0.05), (0.05, 0.2), (0.2, 1.0)):
        here = rows.filter(pl.col("p_click").is_between(low, high))
        expected = here["p_click"].sum()
        assert abs(here["click"].sum() - expected) < 4 * math.sqrt(expected)


def test_the_features_tell_of_the_labels(landing: Path) -> None:
    # organic events, central features and clicks all come from one interest: a feature that
    # says nothing would leave nothing to transfer
    day = deliver(small_world(), NUMBER, 3)
    users, ads = day.users, day.ads
    user = day.requests.user_R[day.request_I]
    seen = (users.seen_interest_UD[user] * ads.latent_AD[day.ad_I]).sum(axis=1)
    assert np.corrcoef(seen, np.log(day.p_click_I))[0, 1] > 0.4
    assert np.corrcoef(users.seen_purchase_U[user], np.log(day.p_buy_I))[0, 1] > 0.4
    cluster_mean = pl.DataFrame({"c": users.cluster_U, "x": users.shared_UD[:, 0]})
    means = cluster_mean.group_by("c").agg(pl.col("x").mean())["x"].to_numpy()
    assert means.std() > 0.3


def test_interest_drifts_and_people_come_and_go() -> None:
    days = [users_of(small_world(), NUMBER + k, 3) for k in (0, 1, 10)]
    same = days[0].id_U == days[1].id_U
    now, next_day = (d.shared_UD[same].ravel() for d in days[:2])
    assert np.corrcoef(now, next_day)[0, 1] == pytest.approx(DRIFT, abs=0.01)
    assert now.std() == pytest.approx(1.0, abs=0.03)
    assert 0.07 < (days[0].id_U != days[2].id_U).mean() < 0.13
    born = days[2].id_U != days[0].id_U
    drift = np.corrcoef(days[0].shared_UD[born].ravel(), days[2].shared_UD[born].ravel())[0, 1]
    assert abs(drift) < 0.1


def test_activity_has_a_heavy_tail_and_load_follows_the_clock(landing: Path) -> None:
    rows = frame(landing, "impressions")
    per_user = rows["user_id"].value_counts()["count"]
    assert per_user.max() > 8 * per_user.mean()  # type: ignore[operator]
    by_hour = rows["ts"].dt.hour().value_counts().sort("ts")["count"]
    assert by_hour.max() > 3 * by_hour.min()  # type: ignore[operator]


def test_candidates_are_consistent_with_the_impressions(landing: Path) -> None:
    impressions, candidates = frame(landing, "impressions"), frame(landing, "candidates")
    keys = ["request_id", "ts", "surface", "user_id", "ad_id"]
    shown = candidates.filter(pl.col("shown") == 1)
    assert shown.select(*keys, position="rank").equals(impressions.select(*keys, "position"))
    assert candidates.select(keys[0], keys[-1]).is_unique().all()
    per_request = candidates.group_by("request_id").agg(
        pl.len(),
        pl.col("shown").sum(),
        best_first=pl.col("score").is_sorted(descending=True),
        ranks=pl.col("rank").max(),
    )
    assert per_request["len"].unique().to_list() == [20]
    assert sorted(per_request["shown"].unique().to_list()) == [1, 2, 3]
    assert per_request["best_first"].all()
    assert per_request["ranks"].unique().to_list() == [19]


def test_finalists_recur_within_the_day_and_fade_after_two_days(tmp_path: Path) -> None:
    config = tiny(rows_per_day=4_000, ads=400)
    days = ["2026-11-17", "2026-11-18", "2026-11-20"]
    for day in days:
        generate_day(config, day, tmp_path)
    pairs = [frame(tmp_path, "candidates", d).select("user_id", "ad_id").unique() for d in days]
    again = [pairs[0].join(p, on=["user_id", "ad_id"], how="semi").height for p in pairs[1:]]
    both = [
        pairs[0].join(p.select("user_id").unique(), on="user_id", how="semi").height
        for p in pairs[1:]
    ]
    tomorrow, later = again[0] / both[0], again[1] / both[1]
    assert tomorrow > 0.35
    assert later < 0.75 * tomorrow
    requests = frame(tmp_path, "candidates").sort("user_id", "ts", "request_id")
    per_pair = requests.group_by("user_id", "ad_id").len()["len"]
    assert per_pair.mean() > 2.0  # type: ignore[operator]


def test_conversions_are_late_and_belong_to_clicks_of_the_last_two_days(tmp_path: Path) -> None:
    config = tiny(rows_per_day=16_000, users=600)
    days = ["2026-11-18", "2026-11-19", DAY]
    sold: dict[int, pa.Table] = {}
    for day in days:
        generate_day(config, day, tmp_path, sold=sold)
    clicks = pl.concat([frame(tmp_path, "impressions", d) for d in days]).filter(
        pl.col("click") == 1
    )
    conversions = frame(tmp_path, "conversions")
    joined = conversions.join(clicks, on=["impression_id", "user_id"])
    assert joined.height == conversions.height > 15
    assert conversions["impression_id"].is_unique().all()
    delay = (joined["ts"] - joined["ts_right"]).dt.total_microseconds()
    assert delay.min() > 0  # type: ignore[operator]
    assert HOUR_US / 2 < delay.median() < 8 * HOUR_US  # type: ignore[operator]
    # and over all of the next days: some come after the attribution window, none after two days
    late = pl.concat([pl.DataFrame(pl.from_arrow(sold[n])) for n in sorted(sold)])
    late = late.join(clicks, on="impression_id")
    waited = (late["ts"] - late["ts_right"]).dt.total_microseconds()
    assert 24 * HOUR_US < waited.max() < 48 * HOUR_US  # type: ignore[operator]


def test_conversion_truth_counts_only_what_comes_inside_the_window(tmp_path: Path) -> None:
    generate_day(tiny(), DAY, tmp_path / "day")
    short = tiny()
    objectives = tuple(
        o if o.name == "click" else type(o)(name=o.name, window_hours=2) for o in short.objectives
    )
    generate_day(replace(short, objectives=objectives), DAY, tmp_path / "short")
    ratio = (
        frame(tmp_path / "short", "truth")["p_conversion"]
        / frame(tmp_path / "day", "truth")["p_conversion"]
    )
    # half of all conversions come within the median delay of two hours, 95% within a day
    assert ratio.to_numpy() == pytest.approx(0.5 / 0.951, rel=0.01)


def test_ids_tell_days_apart(tmp_path: Path) -> None:
    for day in ("2026-11-19", DAY):
        generate_day(tiny(), day, tmp_path)
    for name in ("impression_id", "request_id"):
        a, b = (frame(tmp_path, "impressions", d)[name].unique() for d in ("2026-11-19", DAY))
        assert not set(a) & set(b)


def test_organic_events_reveal_interest(landing: Path) -> None:
    events = frame(landing, "engagements")
    assert abs(events.height / (5 * small_world().users) - 1) < 0.1
    top = (
        events.group_by("user_id", "category_id")
        .len()
        .group_by("user_id")
        .agg(share=pl.col("len").max() / pl.col("len").sum(), n=pl.col("len").sum())
    )
    assert top.filter(pl.col("n") >= 10)["share"].mean() > 0.35  # type: ignore[operator]


def test_few_ads_give_fewer_finalists_and_no_doubles(tmp_path: Path) -> None:
    generate_day(tiny(ads=5), DAY, tmp_path)
    candidates = frame(tmp_path, "candidates")
    assert candidates.group_by("request_id").len()["len"].max() <= 5  # type: ignore[operator]
    assert candidates.select("request_id", "ad_id").is_unique().all()


def test_a_run_on_some_surfaces_sees_the_rows_that_a_run_on_all_sees(tmp_path: Path) -> None:
    chosen = ("reels", "stories")
    generate_day(tiny(), DAY, tmp_path / "all")
    generate_day(replace(tiny(), surfaces=chosen), DAY, tmp_path / "some")
    every = frame(tmp_path / "all", "impressions")
    ids = every.filter(pl.col("surface").is_in(chosen))["impression_id"].implode()
    for table in ALL:
        whole, some = frame(tmp_path / "all", table), frame(tmp_path / "some", table)
        by_surface = pl.col("surface").is_in(chosen)
        keep = by_surface if "surface" in whole.columns else pl.col("impression_id").is_in(ids)
        if table == "conversions":  # of clicks of earlier days too
            assert some.join(whole, on=some.columns, how="anti").is_empty()
        else:
            assert some.equals(whole.filter(keep)), table


def test_an_unknown_surface_cannot_be_generated(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"surfaces must be of \['feed', 'reels', 'stories'\]"):
        generate_day(replace(tiny(), surfaces=("feed", "watch")), DAY, tmp_path)


def test_a_foreign_source_cannot_be_generated(tmp_path: Path) -> None:
    config = preset("2019-11-29", "smoke", "openbandit")
    with pytest.raises(ConfigError, match=r"source\.planted must be given"):
        generate_day(config, DAY, tmp_path)
