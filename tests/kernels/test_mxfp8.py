"""MXFP8 against a scalar model in exact fractions: codes, scales, rounding, gradients."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.mxfp8 import eager, reference

CODES = torch.arange(256, dtype=torch.uint8)


def bits(x: torch.Tensor) -> list[int]:
    return x.contiguous().view(torch.uint8).flatten().tolist()


def same_numbers(got: list[float], want: list[float]) -> None:
    np.testing.assert_array_equal(np.float32(got), np.float32(want))
    signs = [[math.copysign(1, x) for x in part if x == x] for part in (got, want)]
    assert signs[0] == signs[1]  # a zero keeps its sign; that of a NaN means nothing


def test_every_code_under_every_scale_is_the_number_of_the_format():
    codes_MN = CODES.view(torch.float8_e4m3fn).expand(256, 256)
    scale_mn = CODES[:, None].expand(256, 8)
    got_MN = eager.dequantize(eager.Mxfp8(codes_MN, scale_mn, square=False))
    for row in range(256):
        want = reference.dequantize_block(list(range(256)), row)
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(got_MN[row].numpy(), np.float32(want))


def test_numbers_between_codes_round_to_the_nearest_and_halfway_to_the_even_one():
    values = sorted(float(v) for c in range(127) if (v := reference.element(c)) is not None)
    halfway = [(a + b) / 2 for a, b in itertools.pairwise(values)]
    near = [math.nextafter(h, d) for h in halfway for d in (0.0, math.inf)]
    for x in values + halfway + [float(np.float32(n)) for n in near]:
        numbers = [448.0, x, -x]  # 448 holds the scale at 1
        quantized = eager.quantize(torch.tensor([numbers]))
        codes, shared = reference.quantize_block(numbers)
        assert (bits(quantized.codes_MN), bits(quantized.scale_mn)) == (codes, [shared])


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.floats(width=32) | st.sampled_from([0.0, -0.0, math.inf, -math.inf, math.nan, 1e-45]),
        min_size=1,
        max_size=70,
    )
)
def test_any_row_has_the_codes_and_scales_of_the_scalar_model(numbers):
    quantized = eager.quantize(torch.tensor([numbers]))
    blocks = [numbers[i : i + 32] for i in range(0, len(numbers), 32)]
    for i, block in enumerate(blocks):
        codes, shared = reference.quantize_block(block)
        assert int(quantized.scale_mn[0, i]) == shared
        assert bits(quantized.codes_MN[0, 32 * i : 32 * i + len(block)]) == codes
        back = eager.dequantize(quantized)[0, 32 * i : 32 * i + len(block)].tolist()
        want = reference.dequantize_block(codes, shared)
        with np.errstate(over="ignore"):
            same_numbers(back, want)


def test_a_square_block_has_one_scale_both_ways():
    x_MN = torch.randn(70, 40) * torch.logspace(-20, 20, 40)
    quantized, turned = eager.quantize(x_MN, square=True), eager.quantize(x_MN.T, square=True)
    assert quantized.scale_mn.shape == (3, 2)
    torch.testing.assert_close(
        eager.dequantize(quantized), eager.dequantize(turned).T, rtol=0, atol=0
    )
    corner = x_MN[64:, 32:].flatten().tolist()  # the block at the ragged corner
    assert reference.quantize_block(corner)[1] == int(quantized.scale_mn[2, 1])


def test_an_infinity_is_nan_and_leaves_its_neighbours_alone():
    x_MN = torch.tensor([[1.0, math.inf, -3.0, math.nan]])
    back = eager.dequantize(eager.quantize(x_MN))[0]
    assert back[[0, 2]].tolist() == [1.0, -3.0]
    assert back[[1, 3]].isnan().all()


def test_rounding_by_chance_is_right_on_average_and_lands_on_neighbours():
    torch.manual_seed(0)
    x = torch.tensor([448.0, 1.03, -0.003, 300.0, 2.0**-9 / 4])
    drawn = torch.stack(
        [eager.dequantize(eager.quantize(x[None], stochastic=True))[0] for _ in range(4_000)]
    )
    spacing = torch.tensor([32.0, 0.125, 2.0**-9, 32.0, 2.0**-9])
    assert ((drawn - x).abs() < spacing).all()
    error = (drawn.mean(0) - x).abs() / (spacing * 0.5 / 4_000**0.5)
    assert (error < 4).all()


@pytest.mark.parametrize("hadamard", [False, True])
@pytest.mark.parametrize(("rows", "inputs", "outputs"), [(64, 96, 32), (5, 33, 40), (1, 1, 1)])
def test_the_linear_layer_multiplies_quantized_factors(rows, inputs, outputs, hadamard):
    torch.manual_seed(rows)
    x_MI = torch.randn(rows, inputs, requires_grad=True)
    weight_OI = torch.randn(outputs, inputs, requires_grad=True)
    grad_MO = torch.randn(rows, outputs)
    y_MO = eager.linear(x_MI, weight_OI, eager.Recipe(hadamard=hadamard))
    grad_x, grad_weight = torch.autograd.grad(y_MO, [x_MI, weight_OI], grad_MO)

    def near(x_MN, square=False):
        return eager.dequantize(eager.quantize(x_MN, square=square))

    weight_q = near(weight_OI.detach(), square=True)
    torch.testing.assert_close(y_MO.detach(), near(x_MI.detach()) @ weight_q.T)
    torch.testing.assert_close(grad_x, near(grad_MO) @ weight_q)
    want = near(grad_MO.T) @ near(x_MI.detach().T).T
    if not hadamard:
        torch.testing.assert_close(grad_weight, want)
    exact = grad_MO.T @ x_MI.detach()
    assert eager.sqnr_db(exact, grad_weight) > 20


def test_the_rotation_cancels_in_the_product_and_spreads_an_outlier():
    signs_N = torch.randint(0, 2, (32,)) * 2.0 - 1.0
    left, right = torch.randn(3, 40), torch.randn(4, 40)
    left[0, 0] = 1_000.0
    a, b = eager.rotated(left, signs_N), eager.rotated(right, signs_N)
    torch.testing.assert_close(a @ b.T, left @ right.T, rtol=1e-4, atol=1e-3)
    assert a[0].abs().max() < 250
