"""Public ops on jagged rows, each with an explicit backend; values lie in a `Layout`.

Suffixes: P slots of the layout, B rows, H heads, K head width, N keys per row, S seeds, R = K / 2.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from kernels.attention import eager as _attention
from kernels.gdpa import eager as _gdpa
from kernels.layout import Bucket, Layout, arrange
from kernels.pooling import eager as _pooling

Backend = Literal["auto", "eager"]

__all__ = [
    "Backend",
    "Bucket",
    "Layout",
    "arrange",
    "choose_backend",
    "gdpa",
    "jagged_attention",
    "jagged_pool",
    "rotate",
    "seed_attention",
]


def choose_backend(backend: str = "auto") -> tuple[str, str]:
    """The backend that an op will use and the reason; `ValueError` for one that is not built."""
    if backend == "eager":
        return "eager", "asked for"
    if backend == "auto":
        return "eager", "the only backend that is built"
    raise ValueError(f"backend must be auto or eager, got {backend!r}; only eager is built so far")


def rotate(x_PHK: Tensor, angle_PR: Tensor, *, backend: Backend = "auto") -> Tensor:
    """Turn pair r = (x[2r], x[2r+1]) of every head by angle r; K is even."""
    choose_backend(backend)
    return _attention.rotate(x_PHK, angle_PR)


def jagged_attention(
    q_PHK: Tensor,
    k_PHK: Tensor,
    v_PHK: Tensor,
    layout: Layout,
    *,
    window: int | None = None,
    block: int | None = None,
    backend: Backend = "auto",
) -> Tensor:
    """softmax(q k^T / sqrt(K)) v within each row.

    `window` keeps |i - j| <= window (both ways); `block` keeps i // block == j // block, counted
    from the row's start; `ValueError` for both.
    """
    choose_backend(backend)
    if window is not None and block is not None:
        raise ValueError(f"give window or block, got window={window} and block={block}; drop one")
    if block is not None:
        return _attention.block_attention(q_PHK, k_PHK, v_PHK, layout, block=block)
    return _attention.jagged_attention(q_PHK, k_PHK, v_PHK, layout, window=window)


def seed_attention(
    q_SHK: Tensor, k_PHK: Tensor, v_PHK: Tensor, layout: Layout, *, backend: Backend = "auto"
) -> Tensor:
    """[B, S, H, K]: seeds shared by all rows read each row by softmax; empty rows give zeros."""
    choose_backend(backend)
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
    choose_backend(backend)
    return _gdpa.gdpa(q_PHK, k_BHNK, v_BHNK, layout, scale=scale, activation=activation)


def jagged_pool(
    values_PD: Tensor,
    layout: Layout,
    *,
    mode: Literal["mean", "sum", "softmax"] = "mean",
    logits_P: Tensor | None = None,
    backend: Backend = "auto",
) -> Tensor:
    """[B, D]: mean, sum or softmax-weighted sum of each row's events; empty rows give zeros."""
    choose_backend(backend)
    if (mode == "softmax") != (logits_P is not None):
        raise ValueError(f"logits_P goes with mode 'softmax' alone, got mode {mode!r}; fix one")
    return _pooling.jagged_pool(values_PD, layout, mode=mode, logits_P=logits_P)
