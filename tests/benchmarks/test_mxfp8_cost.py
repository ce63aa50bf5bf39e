"""The control's rounding, and intervals over users and seeds."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmarks._lowbit import coarse_forward, seven_levels
from benchmarks._paired import over_seeds
from model.precision import Linear


def test_the_control_rounds_to_seven_levels_forward_and_backward():
    torch.manual_seed(0)
    assert seven_levels(torch.tensor([3.0, -1.4, 0.4, 1.6])).tolist() == [3.0, -1.0, 0.0, 2.0]
    assert seven_levels(torch.zeros(0, 4)).shape == (0, 4)
    layer, x = Linear(8, 4), torch.randn(5, 8, requires_grad=True)
    exact = layer(x)
    torch.testing.assert_close(coarse_forward(layer, x), exact)
    layer.low = True
    output, gradient = coarse_forward(layer, x), torch.randn(5, 4)
    want = seven_levels(x) @ seven_levels(layer.weight).T + layer.bias
    torch.testing.assert_close(output, want)
    (got,) = torch.autograd.grad(output, [x], gradient)
    torch.testing.assert_close(got, seven_levels(gradient) @ seven_levels(layer.weight))


def test_an_interval_over_seeds_is_as_wide_as_the_seeds_differ():
    users = np.random.default_rng(0).normal(0, 0.01, 501)
    apart = over_seeds([users + shift for shift in (-1.0, 0.0, 1.0)])
    alike = over_seeds([users, users, users])
    assert alike.value == pytest.approx(users[0])
    assert alike.high - alike.low < 0.05
    assert apart.high - apart.low > 1.0
    assert apart.low < 0 < apart.high
