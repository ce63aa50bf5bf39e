"""Exponents, and a training step on synthetic histories."""

from __future__ import annotations

import pytest
import torch

from benchmarks._lengths import config_of
from benchmarks._steps import jagged, synthetic
from benchmarks.context import exponent, steepest


def test_exponents_are_those_of_a_power_law_and_of_its_steepest_part():
    square = [(float(x), 3.0 * x**2) for x in (1, 2, 4, 8)]
    assert exponent(square) == pytest.approx(2)
    assert steepest(square) == pytest.approx(2)
    bent = [(1.0, 10.0), (2.0, 11.0), (4.0, 44.0)]
    assert steepest(bent) == pytest.approx(2)
    assert exponent(bent) < 1.5


def test_histories_are_jagged_half_full_and_reach_the_cap():
    lengths = jagged(64, 1_000, 0)
    assert lengths.max() == 1_000
    assert lengths.min() >= 1
    assert 400 < lengths.float().mean() < 600
    config = config_of(1_000)
    names = [event.name for event in config.features.events]
    batch = synthetic(config, dict.fromkeys(names, lengths), seed=0)
    for event in config.features.events:
        found = batch.events[event.name]
        assert torch.equal(found.lengths_B, lengths)
        assert found.ids_EA.shape == (int(lengths.sum()), len(event.attributes))
    assert batch.num_rows == 64
