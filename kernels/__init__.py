"""Public ops on jagged rows, each with an explicit backend; values lie in a `Layout`.

`backend` is "auto" (dispatch.py decides by the device), "eager" or "triton"; `ValueError` where it
cannot run. GPU kernels are loaded when they are first used.

Suffixes: P slots of the layout, B rows, H heads, K head width, N keys per row, S seeds, R = K / 2.
"""

from __future__ import annotations

import importlib
from typing import Any, Literal

from torch import Tensor

from kernels.attention import eager as _attention
from kernels.dispatch import Backend, choose_backend
from kernels.gdpa import eager as _gdpa
from kernels.jagged_pool import eager as _pool
from kernels.layout import Bucket, Layout, arrange
from kernels.mxfp8 import eager as _mxfp8
from kernels.mxfp8.eager import PLAIN, Mxfp8, Recipe
from kernels.pooling import eager as _pooling

__all__ = [
    "Backend",
    "Bucket",
    "Layout",
    "Mxfp8",
    "Recipe",
    "arrange",
    "choose_backend",
    "gdpa",
    "jagged_attention",
    "jagged_pool",
    "mxfp8_dequantize",
    "mxfp8_linear",
    "mxfp8_quantize",
    "mxfp8_support",
    "rotate",
    "seed_attention",
    "sqnr_db",
]


def _is_triton(backend: Backend, tensor: Tensor) -> bool:
    return choose_backend(backend, tensor.device.type)[0] == "triton"


def _triton(op: str) -> Any:
    """The GPU kernels of an op, which need not be loaded before."""
    return importlib.import_module(f"kernels.{op}.triton_op")


def rotate(x_PHK: Tensor, angle_PR: Tensor) -> Tensor:
    """Turn pair r = (x[2r], x[2r+1]) of every head by angle r; K is even."""
    return _attention.rotate(x_PHK, angle_PR)


def jagged_attention(
    q_PHK: Tensor,
    k_PHK: Tensor,
    v_PHK: Tensor,
    layout: Layout,
    *,
    window: int | None = None,
    block: int | None = None,
    angle_PR: Tensor | None = None,
    backend: Backend = "auto",
) -> Tensor:
    """softmax(q k^T / sqrt(K)) v within each row.

    `window` keeps |i - j| <= window (both ways); `block` keeps i // block == j // block, counted
    from the row's start; `ValueError` for both. `angle_PR` turns queries and keys first (`rotate`).
    """
    if window is not None and block is not None:
        raise ValueError(f"give window or block, got window={window} and block={block}; drop one")
    if _is_triton(backend, q_PHK):
        return _triton("attention").jagged_attention(
            q_PHK, k_PHK, v_PHK, layout, window=window, block=block, angle_PR=angle_PR
        )
    if angle_PR is not None:
        q_PHK, k_PHK = rotate(q_PHK, angle_PR), rotate(k_PHK, angle_PR)
    if block is not None:
        return _attention.block_attention(q_PHK, k_PHK, v_PHK, layout, block=block)
    return _attention.jagged_attention(q_PHK, k_PHK, v_PHK, layout, window=window)


def seed_attention(
    q_SHK: Tensor, k_PHK: Tensor, v_PHK: Tensor, layout: Layout, *, backend: Backend = "auto"
) -> Tensor:
    """[B, S, H, K]: seeds shared by all rows read each row by softmax; empty rows give zeros."""
    if _is_triton(backend, q_SHK):
        return _triton("pooling").seed_attention(q_SHK, k_PHK, v_PHK, layout)
    return _pooling.seed_attention(q_SHK, k_PHK, v_PHK, layout)


def gdpa(
    q_PHK: Tensor,
    k_BHNK: Tensor,
    v_BHNK: Tensor,
    layout: Layout,
    *,
    scale: float,
    activation: str | tuple[str, ...] = "gelu",
    backend: Backend = "auto",
) -> Tensor:
    """Act(q k^T * scale) v, keys and values dense per row; no softmax (arXiv 2602.10016).

    Several activations are taken by the heads in turn.
    """
    run = _triton("gdpa").gdpa if _is_triton(backend, q_PHK) else _gdpa.gdpa
    return run(q_PHK, k_BHNK, v_BHNK, layout, scale=scale, activation=activation)


def jagged_pool(
    values_PD: Tensor,
    layout: Layout,
    *,
    mode: Literal["mean", "sum", "softmax"] = "mean",
    logits_P: Tensor | None = None,
    backend: Backend = "auto",
) -> Tensor:
    """[B, D]: mean, sum or softmax-weighted sum of each row's events; empty rows give zeros."""
    if mode not in ("mean", "sum", "softmax"):
        raise ValueError(f"mode must be mean, sum or softmax, got {mode!r}; choose one")
    if (mode == "softmax") != (logits_P is not None):
        raise ValueError(f"logits_P goes with mode 'softmax' alone, got mode {mode!r}; fix one")
    triton = _is_triton(backend, values_PD)
    run = _triton("jagged_pool").jagged_pool if triton else _pool.jagged_pool
    pooled_BD: Tensor = run(values_PD, layout, mode=mode, logits_P=logits_P)
    return pooled_BD


def mxfp8_quantize(x_MN: Tensor, *, square: bool = False, stochastic: bool = False) -> Mxfp8:
    """E4M3 codes and a power of two per 32 columns, or per 32 x 32 square (kernels/mxfp8)."""
    return _mxfp8.quantize(x_MN, square=square, stochastic=stochastic)


def mxfp8_dequantize(x: Mxfp8) -> Tensor:
    """float32 numbers of MXFP8 codes, [M, N]."""
    return _mxfp8.dequantize(x)


def mxfp8_linear(x_MI: Tensor, weight_OI: Tensor, *, recipe: Recipe = PLAIN) -> Tensor:
    """x w^T of factors rounded to MXFP8, [M, O]; so are both products of the backward pass."""
    return _mxfp8.linear(x_MI, weight_OI, recipe)


def sqnr_db(exact_MN: Tensor, rounded_MN: Tensor) -> float:
    """Signal to rounding noise in decibels; infinite for an exact copy, 0 for no signal."""
    return _mxfp8.sqnr_db(exact_MN, rounded_MN)


def mxfp8_support() -> tuple[str, str]:
    """How MXFP8 products are computed here, and the reason."""
    return "emulated", "exact codes and scales, float32 products: no block-scaled unit is used"
