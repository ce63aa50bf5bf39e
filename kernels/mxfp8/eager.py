"""MXFP8 emulated in float32: the numbers are exactly the format's, the products are not its speed.

Suffixes: M rows, N columns, I inputs, O outputs, m and n blocks of 32 rows and columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK = 32
SCALE_BIAS = 127
NAN_SCALE = 255
SMALLEST_EXPONENT = -6  # below 2^-6 the spacing of E4M3 stays 2^-9


@dataclass(frozen=True, slots=True)
class Mxfp8:
    """E4M3 elements [M, N] and E8M0 scales, one per 32 columns of a row or per 32 x 32 square."""

    codes_MN: Tensor  # float8_e4m3fn
    scale_mn: Tensor  # uint8; [M, n], or [m, n] when square
    square: bool


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How the gradients of a linear layer are kept within eight bits.

    `hadamard`: rotate the rows of both factors of the weight's gradient by a random Hadamard
    matrix of 32 x 32, which spreads outliers over a block and cancels in the product.
    `stochastic`: round the output's gradient up or down by chance, so that it is right on average.
    """

    hadamard: bool = False
    stochastic: bool = False


PLAIN = Recipe()


def quantize(x_MN: Tensor, *, square: bool = False, stochastic: bool = False) -> Mxfp8:
    """Nearest codes under the scale 2^ceil(log2(amax / 448)) of each block.

    NaN and infinities become NaN and do not set the scale of the rest of their block.
    """
    num_rows, num_columns = x_MN.shape
    finite_MN = x_MN.isfinite()
    scale_mn = _scales(_blocks_amax(torch.where(finite_MN, x_MN, 0.0).abs(), square))
    power_MN = _spread(_power(-scale_mn), square, num_rows, num_columns)
    scaled_MN = x_MN.float() * power_MN
    if stochastic:
        scaled_MN = _rounded_by_chance(scaled_MN)
    scaled_MN = torch.where(finite_MN, scaled_MN, torch.copysign(x_MN.new_tensor(torch.nan), x_MN))
    codes = (scale_mn + SCALE_BIAS).to(torch.uint8)
    return Mxfp8(scaled_MN.to(torch.float8_e4m3fn), codes, square)


def dequantize(x: Mxfp8) -> Tensor:
    """float32 [M, N]; NaN where the element or its scale is."""
    power_mn = _power(x.scale_mn.to(torch.int32) - SCALE_BIAS)
    power_mn = torch.where(x.scale_mn == NAN_SCALE, torch.nan, power_mn)
    num_rows, num_columns = x.codes_MN.shape
    return x.codes_MN.float() * _spread(power_mn, x.square, num_rows, num_columns)


def linear(x_MI: Tensor, weight_OI: Tensor, recipe: Recipe = PLAIN) -> Tensor:
    """x w^T of quantized factors, [M, O]; each product of the backward pass is quantized too."""
    result: Tensor = _Linear.apply(x_MI, weight_OI, recipe)
    return result


class _Linear(torch.autograd.Function):
    """Blocks lie along the sum of each product; the weight's squares serve both of its products."""

    @staticmethod
    def forward(ctx: Any, x_MI: Tensor, weight_OI: Tensor, recipe: Recipe) -> Tensor:
        """x w^T; the sum runs over I."""
        weight = quantize(weight_OI, square=True)
        ctx.save_for_backward(x_MI, weight.codes_MN, weight.scale_mn)
        ctx.recipe = recipe
        return dequantize(quantize(x_MI)) @ dequantize(weight).T

    @staticmethod
    def backward(ctx: Any, grad_MO: Tensor) -> Any:
        """grad w, whose sum runs over O, and grad^T x, whose sum runs over the rows."""
        x_MI, codes_OI, scale_oi = ctx.saved_tensors
        recipe: Recipe = ctx.recipe
        chance = recipe.stochastic
        weight_OI = dequantize(Mxfp8(codes_OI, scale_oi, square=True))
        grad_x_MI = dequantize(quantize(grad_MO, stochastic=chance)) @ weight_OI
        left_OM, right_IM = grad_MO.T, x_MI.T
        if recipe.hadamard:
            signs_N = torch.randint(0, 2, (BLOCK,), device=x_MI.device) * 2.0 - 1.0
            left_OM, right_IM = rotated(left_OM, signs_N), rotated(right_IM, signs_N)
        left_OM = dequantize(quantize(left_OM, stochastic=chance))
        return grad_x_MI, left_OM @ dequantize(quantize(right_IM)).T, None


def rotated(x_MN: Tensor, signs_N: Tensor) -> Tensor:
    """Each block of 32 columns (the last one filled up) times diag(signs) H / sqrt(32)."""
    blocks_MnN = _filled(x_MN, columns_only=True).unflatten(1, (-1, BLOCK)) * signs_N
    hadamard_NN = x_MN.new_ones(1, 1)
    while hadamard_NN.shape[0] < BLOCK:
        twice = torch.cat([hadamard_NN, hadamard_NN], dim=1)
        hadamard_NN = torch.cat([twice, torch.cat([hadamard_NN, -hadamard_NN], dim=1)])
    return (blocks_MnN @ (hadamard_NN * BLOCK**-0.5)).flatten(1)


def sqnr_db(x_MN: Tensor, approximate_MN: Tensor) -> float:
    """Signal to quantization noise in decibels; infinite for an exact copy, 0 for no signal."""
    noise = float((x_MN.double() - approximate_MN.double()).square().sum())
    signal = float(x_MN.double().square().sum())
    if noise == 0.0:
        return float("inf")
    return float(10 * torch.log10(torch.tensor(signal / noise))) if signal else 0.0


def _filled(x_MN: Tensor, *, columns_only: bool) -> Tensor:
    """Zeros up to whole blocks."""
    rows = 0 if columns_only else -x_MN.shape[0] % BLOCK
    return F.pad(x_MN, (0, -x_MN.shape[1] % BLOCK, 0, rows))


def _blocks_amax(size_MN: Tensor, square: bool) -> Tensor:
    filled_MN = _filled(size_MN, columns_only=not square)
    amax_Mn = filled_MN.unflatten(1, (-1, BLOCK)).amax(2)
    return amax_Mn.unflatten(0, (-1, BLOCK)).amax(1) if square else amax_Mn


def _scales(amax_mn: Tensor) -> Tensor:
    """ceil(log2(amax / 448)) from the float's own exponent: 448 is .875 * 2^9."""
    mantissa_mn, exponent_mn = torch.frexp(amax_mn.float())
    scale_mn = exponent_mn - 9 + (mantissa_mn > 0.875)
    return torch.where(amax_mn > 0, scale_mn, -SCALE_BIAS).clamp(-SCALE_BIAS, SCALE_BIAS)


def _power(exponent: Tensor) -> Tensor:
    """2^exponent, exactly, subnormal powers included."""
    return torch.ldexp(torch.ones_like(exponent, dtype=torch.float32), exponent)


def _spread(value_mn: Tensor, square: bool, num_rows: int, num_columns: int) -> Tensor:
    """A block's value at each of its elements."""
    if square:
        value_mn = value_mn.repeat_interleave(BLOCK, dim=0)[:num_rows]
    return value_mn.repeat_interleave(BLOCK, dim=1)[:, :num_columns]


def _rounded_by_chance(scaled_MN: Tensor) -> Tensor:
    """To a neighbour in E4M3, the nearer one the likelier."""
    _, exponent_MN = torch.frexp(scaled_MN)
    step_MN = _power((exponent_MN - 1).clamp_min(SMALLEST_EXPONENT) - 3)
    return torch.floor(scaled_MN / step_MN + torch.rand_like(scaled_MN)) * step_MN
