from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from pipeline.mixing.synthetic import generate_day
from pipeline.mixing.synthetic_day import (
    CLICK_GAIN,
    DELAY_MEDIAN_US,
    DELAY_SD,
    FATIGUE,
    POSITION_BIAS,
    Delivery,
    bisected,
    deliver,
)
from pipeline.mixing.synthetic_plots import draw
from pipeline.mixing.synthetic_tables import engagements
from pipeline.mixing.synthetic_world import (
    SHARED,
    activity_of,
    ads_of,
    contexts_of,
    users_of,
)
from pipeline.run.config import with_overrides
from pipeline.run.planted import PlantedConfig
from pipeline.run.presets import planted, preset
from pipeline.run.window import DAY_US, HOUR_US, day_begin_us

DAY = "2026-11-20"
NUMBER = day_begin_us(DAY) // DAY_US
WORLD = PlantedConfig()


@pytest.fixture(scope="module")
def day() -> Delivery:
    """A day of the default world."""
    return deliver(WORLD, NUMBER, 3)


def earlier_exposures(day: Delivery) -> np.ndarray:
    """How often each row's ad was shown to its user before, by a plain loop."""
    seen: Counter[tuple[int, int]] = Counter()
    counts = []
    user = day.requests.user_R[day.request_I]
    for pair in zip(user.tolist(), day.ad_I.tolist(), strict=True):
        counts.append(seen[pair])
        seen[pair] += 1
    return np.array(counts)


def test_the_click_logit_has_the_planted_parts(day: Delivery) -> None:
    users, ads, requests = day.users, day.ads, day.requests
    user, surface = requests.user_R[day.request_I], requests.surface_R[day.request_I]
    affinity = (users.interest_SUD[surface, user] * ads.latent_AD[day.ad_I]).sum(axis=1)
    parts = {
        "affinity": (affinity, CLICK_GAIN),
        "user": (users.bias_U[user], 1.0),
        "ad": (ads.quality_A[day.ad_I], 1.0),
        "context": (contexts_of(WORLD)[requests.context_R[day.request_I]], 1.0),
        "position": (np.log2(1.0 + day.position_I), -POSITION_BIAS),
        "fatigue": (np.log1p(earlier_exposures(day)), -FATIGUE),
    }
    logit = np.log(day.p_click_I / (1 - day.p_click_I))
    for s in range(3):
        here = surface == s
        x = np.column_stack([np.ones(here.sum()), *(v[here] for v, _ in parts.values())])
        found = np.linalg.lstsq(x.astype(np.float64), logit[here], rcond=None)[0][1:]
        assert found == pytest.approx([w for _, w in parts.values()], abs=1e-4), s


def test_clicks_show_position_bias_and_fatigue_as_the_truth_has_them(day: Delivery) -> None:
    for group in (day.position_I, np.minimum(earlier_exposures(day), 3)):
        for value in np.unique(group):
            here = group == value
            expected = day.p_click_I[here].sum()
            assert abs(day.click_I[here].sum() - expected) < 4 * math.sqrt(expected)
    # the same pairs of interest and ad at a worse place: the best-ranked ads are also liked more
    means = [day.p_click_I[day.position_I == place].mean() for place in (0, 1, 2)]
    assert means[0] > 1.2 * means[1] > 1.2 * means[2]


def test_surfaces_share_most_of_an_interest_and_not_all(day: Delivery) -> None:
    for a, b in ((0, 1), (0, 2), (1, 2)):
        found = np.corrcoef(*(day.users.interest_SUD[s].ravel() for s in (a, b)))[0, 1]
        assert found == pytest.approx(SHARED, abs=0.03)


def test_few_ads_get_most_impressions(day: Delivery) -> None:
    shown = np.sort(np.bincount(day.ad_I, minlength=WORLD.ads))[::-1]
    assert shown[: WORLD.ads // 10].sum() > 0.3 * shown.sum()
    assert shown[: WORLD.ads // 10].sum() > 10 * shown[-WORLD.ads // 10 :].sum()


def test_new_ads_keep_their_category_and_nothing_else() -> None:
    now, later = ads_of(WORLD, NUMBER), ads_of(WORLD, NUMBER + 10)
    new = now.id_A != later.id_A
    assert 0.05 < new.mean() < 0.16
    assert (now.category_A == later.category_A).all()
    assert now.quality_A[~new] == pytest.approx(later.quality_A[~new])
    assert abs(np.corrcoef(now.quality_A[new], later.quality_A[new])[0, 1]) < 0.5
    assert not set(later.id_A[new]) & set(now.id_A)


def test_delays_are_log_normal_and_some_pass_the_window(day: Delivery) -> None:
    logs = np.log(day.delay_I)
    assert logs.mean() == pytest.approx(math.log(DELAY_MEDIAN_US), abs=0.03)
    assert logs.std() == pytest.approx(DELAY_SD, rel=0.02)
    assert (day.delay_I > 24 * HOUR_US).mean() == pytest.approx(0.049, abs=0.005)


def test_organic_events_of_the_day_before_tell_of_todays_clicks(day: Delivery) -> None:
    users = users_of(WORLD, NUMBER - 1, 3)
    events = pa.concat_tables(engagements(WORLD, users, NUMBER - 1))
    slot = np.searchsorted(np.sort(users.id_U), events["user_id"].to_numpy())
    slot = np.argsort(users.id_U)[slot]
    seen = np.zeros((WORLD.users, WORLD.categories + 1))
    np.add.at(seen, (slot, events["category_id"].to_numpy()), 1.0)
    share = seen / np.maximum(seen.sum(axis=1, keepdims=True), 1.0)
    user = day.requests.user_R[day.request_I]
    known = (seen.sum(axis=1) >= 5)[user] & (users.id_U == day.users.id_U)[user]
    matching = share[user, day.ads.category_A[day.ad_I]]
    assert np.corrcoef(matching[known], np.log(day.p_click_I[known]))[0, 1] > 0.3


def test_finalists_are_twenty_and_return_in_the_next_request(day: Delivery) -> None:
    requests = day.requests
    order = np.argsort(requests.user_R, kind="stable")[:4_000]
    same = requests.user_R[order][1:] == requests.user_R[order][:-1]
    again = [
        np.isin(requests.ads_RF[b], requests.ads_RF[a]).mean()
        for a, b, s in zip(order, order[1:], same, strict=False)
        if s
    ]
    assert requests.ads_RF.shape[1] == 20
    assert 0.5 < np.mean(again) < 0.62


def test_activity_decides_how_long_the_longest_history_is() -> None:
    spread = replace(WORLD, activity_sd=1.2)
    assert np.log(activity_of(spread, NUMBER)).std() == pytest.approx(1.2, rel=0.05)
    assert activity_of(WORLD, NUMBER) == pytest.approx(users_of(WORLD, NUMBER, 3).activity_U)
    base = planted("base").source.planted
    assert base is not None
    a_day = base.rows_per_day / base.users * activity_of(base, NUMBER)
    assert a_day.mean() == pytest.approx(10, rel=0.01)
    assert 16_000 < 30 * a_day.max() < 80_000
    assert 1 <= (30 * a_day > 16_000).sum() < 50


@pytest.mark.parametrize("rate", [0.001, 0.045, 0.9])
def test_newtons_shortcut_ends_where_halving_ends(rate: float) -> None:
    rng = np.random.default_rng(3)
    logit, weight = rng.normal(0, 2, 5_000), rng.random(5_000)
    low, high = -30.0, 30.0
    for _ in range(40):
        middle = (low + high) / 2
        mean = np.average(1.0 / (1.0 + np.exp(-logit - middle)), weights=weight)
        low, high = (middle, high) if mean < rate else (low, middle)
    assert bisected(logit, rate, weight) == low


def test_the_number_of_threads_changes_nothing(tmp_path: Path) -> None:
    sizes = {"rows_per_day": 2_000, "users": 4_500, "ads": 60}
    config = with_overrides(
        preset(DAY, "smoke"), {f"source.planted.{k}": v for k, v in sizes.items()}
    )
    for threads in (1, 3):
        generate_day(config, DAY, tmp_path / str(threads), threads=threads)
    files = sorted(p.relative_to(tmp_path / "1") for p in (tmp_path / "1").rglob("*.parquet"))
    assert len(files) == 5
    for file in files:
        assert (tmp_path / "1" / file).read_bytes() == (tmp_path / "3" / file).read_bytes(), file


def test_every_marginal_is_drawn() -> None:
    figure = draw(replace(WORLD, rows_per_day=2_000, users=300, ads=60, categories=6), NUMBER)
    titles = [axes.get_title() for axes in figure.axes]
    assert len(titles) == len(set(titles)) == 9
    assert all(axes.has_data() and axes.get_xlabel() for axes in figure.axes)
