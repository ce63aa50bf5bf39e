"""Generalized dot-product attention (arXiv 2602.10016), as the formula reads."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

ACTIVATIONS = ("gelu", "silu", "relu", "relu_square", "identity")


def place_of(name: str) -> int:
    """Where an activation stands in `ACTIVATIONS`; `ValueError` for one that does not."""
    if name not in ACTIVATIONS:
        raise ValueError(
            f"activation must be gelu, silu, relu, relu_square or identity, got {name!r}; "
            "choose one"
        )
    return ACTIVATIONS.index(name)


def activate(x: Tensor, name: str) -> Tensor:
    """One of gelu, silu, relu, relu_square, identity; all of them are 0 at 0."""
    if name == "gelu":
        return F.gelu(x)
    if name == "silu":
        return F.silu(x)
    if name == "relu":
        return F.relu(x)
    if name == "relu_square":
        return F.relu(x).square()
    place_of(name)  # anything else is no activation
    return x


def gdpa(
    q_EHK: Tensor,
    k_BHNK: Tensor,
    v_BHNK: Tensor,
    lengths_B: Tensor,
    *,
    scale: float,
    activation: str | tuple[str, ...] = "gelu",
) -> Tensor:
    """Act(q k^T * scale) v: the queries are the row's events, keys and values the row's own."""
    names = (activation,) if isinstance(activation, str) else activation
    rows, start = [], 0
    for row, length in enumerate(lengths_B.tolist()):
        q_THK = q_EHK[start : start + length]
        start += length
        score_HTN = torch.einsum("thk,hnk->htn", q_THK, k_BHNK[row]) * scale
        weight_HTN = torch.stack(
            [activate(score, names[h % len(names)]) for h, score in enumerate(score_HTN)]
        )
        rows.append(torch.einsum("htn,hnk->thk", weight_HTN, v_BHNK[row]))
    return torch.cat(rows) if rows else torch.zeros_like(q_EHK)
