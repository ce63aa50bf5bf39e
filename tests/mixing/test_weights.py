"""Corrections and balance: what the sampled rows say is what all rows said."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.config import Objective
from pipeline.mixing.budget import Candidates, plan_mix
from pipeline.mixing.hashing import uniform
from pipeline.mixing.weights import balance_factors, check_correction, correct
from pipeline.run.config import MixConfig
from pipeline.run.errors import ConfigError

SEEDS = 40


def kept_rows(rows: int, alpha: float, seed: int) -> tuple[Candidates, np.ndarray, np.ndarray]:
    """Candidates on three uneven surfaces, which of them a seed keeps, and every row's rate."""
    rng = np.random.default_rng(1)
    surface = rng.choice(3, rows, p=[0.65, 0.25, 0.1])
    found = Candidates(
        surface=surface,
        flops=rng.integers(1, 5, rows).astype(np.float64),
        certain=rng.random(rows) < 0.05,
        chance=uniform(np.arange(rows), 1_000 + seed),
    )
    plan = plan_mix(MixConfig(alpha=alpha), ("a", "b", "c"), found)
    return found, plan.keeps(surface, found.certain, found.chance), plan.rates[surface]


@settings(max_examples=8, deadline=None)
@given(rows=st.integers(2_000, 4_000), alpha=st.sampled_from([1e-6, 0.5, 0.7, 1.0]))
def test_weighted_counts_over_seeds_are_the_true_counts(rows, alpha):
    sums, variance = np.zeros((SEEDS, 3)), np.zeros(3)
    for seed in range(SEEDS):
        found, kept, rate = kept_rows(rows, alpha, seed)
        weight, _ = correct("weight", rate=np.where(found.certain, 1.0, rate), odds=rate)
        sums[seed] = np.bincount(found.surface, weight * kept * ~found.certain, 3)
        assert (weight[found.certain] == 1).all()
    negative = found.surface[~found.certain]
    true = np.bincount(negative, minlength=3)
    variance = np.bincount(negative, (1 / rate - 1)[~found.certain], 3)
    # the rates themselves are shrunk by chance to fit the budget: a part in a thousand or so
    error = 5 * np.sqrt(variance / SEEDS) + 0.004 * true
    assert (np.abs(sums.mean(axis=0) - true) <= error + 1e-9).all()


@pytest.mark.parametrize("how", ["weight", "shift"])
def test_both_corrections_recover_the_base_rate(how):
    found, kept, rate = kept_rows(60_000, 0.7, 0)
    weight, shift = correct(how, rate=np.where(found.certain, 1.0, rate), odds=rate)
    y, w, s = (a[kept] for a in (found.certain.astype(float), weight, shift))
    logit = 0.0
    for _ in range(30):  # the intercept of largest likelihood
        p = 1 / (1 + np.exp(-(logit + s)))
        logit += (w * (y - p)).sum() / (w * p * (1 - p)).sum()
    assert 1 / (1 + np.exp(-logit)) == pytest.approx(found.certain.mean(), rel=0.02)
    uncorrected = y.mean()
    assert uncorrected > 1.5 * found.certain.mean()


def test_none_leaves_the_sampled_rates():
    weight, shift = correct("none", rate=np.array([0.5]), odds=np.array([0.5]))
    assert (weight, shift) == (1.0, 0.0)


def test_a_shift_needs_one_label_per_row():
    twins = (
        Objective(name="conversion", window_hours=24),
        Objective(name="install", window_hours=24),
    )
    with pytest.raises(ConfigError, match=r"mix\.correction must be weight"):
        check_correction("shift", twins)
    check_correction("weight", twins)
    check_correction("shift", (Objective(name="click"), twins[0]))


@settings(max_examples=60, deadline=None)
@given(
    positives=st.lists(st.integers(0, 5_000), min_size=1, max_size=6),
    beta=st.floats(0.0, 0.9999),
)
def test_balance_raises_small_surfaces_and_keeps_the_total(positives, beta):
    counts = np.array(positives)
    factors = balance_factors(counts, beta)
    assert (factors * counts).sum() == pytest.approx(counts.sum())
    order = np.argsort(counts[counts > 0], kind="stable")
    assert (np.diff(factors[counts > 0][order]) <= 1e-9).all()


def test_balance_by_hand():
    assert balance_factors(np.array([100, 10]), 0.0).tolist() == [1.0, 1.0]
    factors = balance_factors(np.array([1_000, 10]), 0.99999)
    assert factors[1] / factors[0] == pytest.approx(100, rel=0.01)
    halfway = balance_factors(np.array([1_000, 10]), 0.99)
    assert halfway[1] / halfway[0] == pytest.approx(100 / (1 - 0.99**10) / 100, rel=0.05)
