"""What an offer's priority is learned from, and that it only looks back."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks._request_world import RequestWorld, planted_requests
from benchmarks._solaris_coverage import LAST_DAY, coverage
from pipeline.run.config import SolarisConfig
from pipeline.run.window import DAY_US, HOUR_US
from pipeline.solaris.offers import Codes
from pipeline.solaris.policy import Chosen, choose_pairs
from pipeline.solaris.predictor import FEWEST_OFFERS, fit
from pipeline.solaris.rankings import ExpectedAsks, ranking_of
from pipeline.solaris.requests import Requests
from pipeline.solaris.sweeps import sweeps

TIGHT = SolarisConfig(vectors_per_request=2.0)


@pytest.fixture(scope="module")
def world() -> RequestWorld:
    return planted_requests(users=500, days=4, last_day=LAST_DAY)


def played(requests: Requests, world: RequestWorld, config: SolarisConfig) -> Chosen:
    codes = Codes(requests)
    return choose_pairs(
        requests,
        codes,
        ranking_of(requests, codes, config),
        config,
        begin_us=world.begin_us - DAY_US,
        end_us=world.end_us,
    )


def drawn(rows: int = 20_000) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features, the chance that they give, and how often pairs were asked for."""
    rng = np.random.default_rng(0)
    x = rng.normal(3.0, 2.0, (rows, 2))
    chance = 1 / (1 + np.exp(-(0.8 * (x[:, 0] - 3) - 0.5)))
    times = np.where(x[:, 1] > 3, 4, 1)
    return x, chance, np.where(rng.random(rows) < chance, times, 0)


def test_a_fit_finds_chances_and_how_often() -> None:
    x, chance, asks = drawn()
    model = fit(x, asks)
    assert model is not None
    assert np.abs(model.chance(x) - chance).mean() < 0.01
    high, low = x[:, 1] > 4, x[:, 1] < 2
    assert model.asks(x)[high].mean() > 2 * model.asks(x)[low].mean()


def test_a_priority_has_the_same_bits_alone_and_among_others() -> None:
    x, _, asks = drawn(1_000)
    model = fit(x, asks)
    assert model is not None
    alone = np.concatenate([model.asks(x[i : i + 1]) for i in range(50)])
    assert np.array_equal(alone, model.asks(x)[:50])


@pytest.mark.parametrize(
    "asks", [np.zeros(FEWEST_OFFERS), np.ones(FEWEST_OFFERS), np.arange(FEWEST_OFFERS - 1)]
)
def test_nothing_is_fitted_on_what_says_too_little(asks: np.ndarray) -> None:
    assert fit(np.ones((len(asks), 2)), asks) is None


def test_the_predictor_beats_its_baselines_and_an_oracle_beats_it(world: RequestWorld) -> None:
    exact = {
        policy: coverage(world, replace(TIGHT, policy=policy))["exact"]
        for policy in ("logistic", "recent", "popularity")
    }
    exact["oracle"] = coverage(world, TIGHT, oracle=True)["exact"]
    assert exact["popularity"] < exact["recent"] < exact["logistic"] < exact["oracle"]


def test_requests_to_come_change_nothing(world: RequestWorld) -> None:
    whole = played(world.requests, world, TIGHT)
    until_us = world.begin_us + 7 * HOUR_US
    cut = played(world.requests.take(world.requests.ts_us_Q < until_us), world, TIGHT)
    early = int((whole.at_us_N <= until_us).sum())
    assert early > 500
    for name in ("user_N", "ad_N", "at_us_N", "priority_N"):
        assert np.array_equal(getattr(cut, name)[:early], getattr(whole, name)[:early]), name


@pytest.mark.parametrize("policy", ["logistic", "recent", "popularity"])
def test_no_tick_takes_more_than_its_budget(world: RequestWorld, policy: str) -> None:
    chosen = played(world.requests, world, replace(TIGHT, policy=policy))
    taken_T = np.searchsorted(chosen.at_us_N, chosen.tick_us_T, side="right")
    assert (np.diff(taken_T, prepend=0) <= chosen.budget_T).all()
    since = int(np.searchsorted(world.requests.ts_us_Q, world.begin_us - DAY_US))
    assert chosen.budget_T.sum() <= TIGHT.vectors_per_request * (len(world.requests) - since)


def test_it_learns_at_midnight_from_vectors_that_have_lived(world: RequestWorld) -> None:
    codes = Codes(world.requests)
    ranking = ExpectedAsks(world.requests, codes, TIGHT)
    played_by = choose_pairs(
        world.requests,
        codes,
        ranking,
        TIGHT,
        begin_us=world.begin_us - DAY_US,
        end_us=world.end_us,
    )
    assert len(played_by.user_N) > 0
    first = world.begin_us // DAY_US
    assert sorted(ranking.lessons) == [first - 1, first]
    assert all(lesson.model is not None for lesson in ranking.lessons.values())


def test_more_budget_covers_more_and_the_config_itself_is_among_them(world: RequestWorld) -> None:
    config = SolarisConfig()
    found = sweeps(world.requests, config, day_us=world.begin_us)
    budgets, lives = found["budget_percent"], found["ttl_hours"]
    exact = [point["exact"] for point in budgets.values()]
    assert exact == sorted(exact)
    assert exact[0] < 0.7 * exact[-1]
    assert budgets["100"] == lives["24"]
    covered = coverage(world, config)
    assert budgets["100"]["exact"] == pytest.approx(covered["exact"], abs=1e-6)
    assert all(sum(point.values()) == pytest.approx(1, abs=1e-5) for point in budgets.values())
