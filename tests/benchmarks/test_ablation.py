"""The arms of the ablation, its shapes, and what may be said of an NE cost."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import ablation
from benchmarks._measure import BenchmarkError
from benchmarks._paired import over_seeds
from benchmarks._removals import (
    REMOVALS,
    SAME_TOWERS,
    WHOLE,
    production,
    production_mflop,
    trained_shape,
)
from pipeline.evaluation.intervals import Interval
from pipeline.run.presets import preset


def test_every_arm_differs_from_full_kunlun_at_both_shapes():
    base = preset("2026-11-29", "small")
    assert set(ablation.TITLES) == set(REMOVALS)
    for shape in (production, lambda arm: trained_shape(base, arm)):
        whole = shape(WHOLE)
        for arm in set(REMOVALS) - {WHOLE}:
            config = shape(arm)
            assert (config.model, config.features) != (whole.model, whole.features), arm
            assert (config.train, config.mix) == (whole.train, whole.mix), arm


def test_without_personalization_all_towers_are_alike():
    sizes = {
        (e.width, e.heads, e.tokens, e.layers, e.window)
        for e in production(SAME_TOWERS).features.events
    }
    assert sizes == {(256, 8, 32, 3, 100)}
    assert production_mflop(SAME_TOWERS) > production_mflop(WHOLE)


def test_compskip_and_the_window_save_the_flops_that_are_wanted():
    whole = production_mflop(WHOLE)
    assert 1 - whole / production_mflop("no_compskip") >= 0.30
    assert 1 - whole / production_mflop("full_attention") >= 0.25


def test_three_seeds_of_one_sign_are_no_finding():
    draws = np.zeros(501)
    apart = over_seeds([draws + 0.1, draws + 0.2, draws + 0.6])
    assert apart.value == pytest.approx(0.3)
    assert apart.low < 0 < apart.high
    alike = over_seeds([draws + 0.30, draws + 0.31, draws + 0.29])
    assert 0 < alike.low < alike.high
    with pytest.raises(BenchmarkError, match="train at least 2"):
        over_seeds([draws])


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(-0.1, 0.2, "within noise"), (0.1, 0.2, "worse"), (-0.2, -0.1, "better")],
)
def test_a_cost_whose_interval_holds_zero_claims_nothing(low, high, verdict):
    found = Interval(value=(low + high) / 2, low=low, high=high)
    assert ablation._cost(found)[1] == verdict
