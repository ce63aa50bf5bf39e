from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from data_contracts.schema import TERM_PREFIX
from pipeline.mixing.synthetic import generate_day
from pipeline.mixing.synthetic_day import Delivery, deliver
from pipeline.mixing.synthetic_scaling import (
    GAINS,
    SAME_WEIGHTS,
    TERMS,
    complement_of,
    events_of,
    pairs_of,
)
from pipeline.run.config import RunConfig, with_overrides
from pipeline.run.planted import SCALING_DELAY_S, SCALING_HORIZON, SCALING_KINDS, PlantedConfig
from pipeline.run.presets import preset
from pipeline.run.window import DAY_US, day_begin_us

DAY = "2026-11-20"
NUMBER = day_begin_us(DAY) // DAY_US


@cache
def world() -> PlantedConfig:
    found = preset(DAY, "small", "scaling").source.planted
    assert found is not None
    return found


@cache
def day() -> Delivery:
    return deliver(world(), NUMBER, 3)


def tiny() -> RunConfig:
    return with_overrides(preset(DAY, "smoke", "scaling"), {"source.planted.users": 60})


def read(landing: Path, table: str) -> pl.DataFrame:
    return pl.read_parquet(
        landing / table / f"day={DAY}" / "part-0.parquet", hive_partitioning=False
    )


@pytest.fixture(scope="module")
def landing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("landing")
    generate_day(tiny(), DAY, folder)
    return folder


def test_same_seed_same_bytes_alone_or_after_other_days(landing: Path, tmp_path: Path) -> None:
    events_of.cache_clear()
    sold: dict[int, object] = {}
    for name in ("2026-11-19", DAY):
        generate_day(tiny(), name, tmp_path, sold=sold)  # type: ignore[arg-type]
    files = sorted(p.relative_to(landing) for p in landing.rglob("*.parquet"))
    assert len(files) == 5
    for file in files:
        assert (landing / file).read_bytes() == (tmp_path / file).read_bytes(), file


def test_the_truth_holds_the_probability_and_its_terms(landing: Path) -> None:
    truth, shown = read(landing, "truth"), read(landing, "impressions")
    terms = [f"{TERM_PREFIX}{name}" for name in TERMS]
    assert truth.columns == ["impression_id", "user_id", "p_click", "p_conversion", *terms]
    rows = truth.join(shown.select("impression_id", "surface"), on="impression_id")
    logit = rows["p_click"].to_numpy()
    logit = np.log(logit / (1 - logit)) - rows.select(terms).sum_horizontal().to_numpy()
    for name in ("feed", "reels", "stories"):
        here = logit[(rows["surface"] == name).to_numpy()]
        assert np.ptp(here) < 1e-9, "the logit is the terms and a constant for each surface"


def test_rates_and_bayes_ne_are_as_planned() -> None:
    p = day().p_click_I
    entropy = -(p * np.log(p) + (1 - p) * np.log(1 - p)).mean()
    base = -(p.mean() * np.log(p.mean()) + (1 - p.mean()) * np.log(1 - p.mean()))
    assert 0.09 < p.mean() < 0.11
    assert 0.70 < entropy / base < 0.74
    assert abs(day().click_I.mean() - p.mean()) < 4 * (p.mean() / len(p)) ** 0.5


def test_every_term_is_bounded_and_large_enough_to_matter() -> None:
    assert tuple(day().terms) == TERMS
    for name, term in day().terms.items():
        assert np.abs(term).max() <= GAINS[name]
        assert 0.4 < term.std() < 1.0, name


def test_kinds_of_events_have_their_shares(landing: Path) -> None:
    events = read(landing, "engagements")
    assert set(events["kind"].unique()) == set(SCALING_KINDS)
    assert (events["item_id"] == events["category_id"]).all()
    assert events["ts"].is_sorted()
    shares = np.bincount(events_of(world(), NUMBER).kind_E) / len(events_of(world(), NUMBER).kind_E)
    assert shares == pytest.approx([0.60, 0.25, 0.15], abs=0.01)


def test_the_complement_is_a_permutation_without_fixed_points() -> None:
    partner = complement_of(world())
    assert sorted(partner) == list(range(world().categories))
    assert (partner != np.arange(world().categories)).all()


def test_the_matrix_of_pairs_has_low_rank() -> None:
    values = np.linalg.svd(pairs_of(world()), compute_uv=False)
    assert values[2] > 0.1
    assert values[3:] == pytest.approx(0, abs=1e-9)


def long_world() -> PlantedConfig:
    """Memory of three days over 64 events."""
    return replace(world(), memory_events=64, memory_days=3.0, users=300, rows_per_day=2_000)


@pytest.mark.parametrize("planted", [world(), long_world()], ids=["default", "long"])
def test_terms_of_events_equal_a_walk_over_a_users_visible_events(planted: PlantedConfig) -> None:
    """One impression after the other, from the definition; the generator works on all at once."""
    delivery = day() if planted == world() else deliver(planted, NUMBER, 3)
    requests, longer = delivery.requests, planted.memory_events / SCALING_HORIZON
    matrix, partner = pairs_of(planted), complement_of(planted)
    first = NUMBER - int(5 * planted.memory_days)
    days = [events_of(planted, d) for d in range(first, NUMBER + 1)]
    for i in np.random.default_rng(0).choice(len(delivery.ad_I), 40, replace=False):
        user = requests.user_R[delivery.request_I[i]]
        ts = requests.ts_R[delivery.request_I[i]]
        ad = delivery.ads.category_A[delivery.ad_I[i]] - 1
        seen = [
            (t, c, k)
            for d in days
            for t, c, k, who in zip(d.ts_E, d.category_E, d.kind_E, d.id_E, strict=True)
            if who == delivery.users.id_U[user] and t + SCALING_DELAY_S * 1_000_000 < ts
        ][-planted.memory_events :]
        same, pairs = 0.0, 0.0
        for place, (t, category, kind) in enumerate(seen):
            age = np.exp(-(ts - t) / (planted.memory_days * DAY_US))
            same += age * SAME_WEIGHTS[kind] * (category == ad)
            before = seen[place - 1] if place else None
            if before and SCALING_KINDS[before[2]] == "view" and SCALING_KINDS[kind] == "cart":
                pairs += age * matrix[before[1], ad]
        same, pairs = same / longer, pairs / longer
        assert delivery.terms["same"][i] == pytest.approx(GAINS["same"] * np.tanh(same / 2.0))
        assert delivery.terms["pairs"][i] == pytest.approx(GAINS["pairs"] * np.tanh(pairs / 0.8))
    assert partner[partner].tolist() != list(range(planted.categories))


def test_orders_matter_events_alone_do_not_tell_the_pairs() -> None:
    """Counts of kinds and categories explain little of the pairs' term: it needs the order."""
    term = day().terms["pairs"]
    others = np.stack([day().terms[n] for n in ("interest", "same", "complement")], axis=1)
    design = np.column_stack([others, np.ones(len(term))])
    rest = term - design @ np.linalg.lstsq(design, term, rcond=None)[0]
    assert rest.var() > 0.95 * term.var()


def test_the_preset_declares_what_the_generator_writes(landing: Path) -> None:
    features = tiny().features
    assert {f.name for f in features.sparse} <= set(read(landing, "impressions").columns)
    (organic,) = features.events
    assert organic.max_len == SCALING_HORIZON
    assert organic.kinds == SCALING_KINDS
