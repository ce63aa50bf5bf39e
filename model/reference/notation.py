"""Notation of the reference: parameters by name, heads, and the few functions of the formulas."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

Weights = Mapping[str, Tensor]


def under(w: Weights, prefix: str) -> dict[str, Tensor]:
    """The parameters of a part: names that begin with `prefix` and a dot, without them."""
    return {k[len(prefix) + 1 :]: v for k, v in w.items() if k.startswith(f"{prefix}.")}


def heads_of(width: int, heads: int) -> list[slice]:
    """The columns of each head."""
    size = width // heads
    return [slice(h * size, (h + 1) * size) for h in range(heads)]


def linear(x: Tensor, w: Weights) -> Tensor:
    """x W^T + b."""
    return x @ w["weight"].T + w["bias"]


def normed(x: Tensor) -> Tensor:
    """(x - mean) / sqrt(variance + 1e-5), along the last axis."""
    centred = x - x.mean(-1, keepdim=True)
    variance = centred.square().mean(-1, keepdim=True)
    return centred / torch.sqrt(variance + 1e-5)


def layer_norm(x: Tensor, w: Weights) -> Tensor:
    """normed(x) * gain + bias."""
    return normed(x) * w["weight"] + w["bias"]


def unit(x: Tensor) -> Tensor:
    """x / |x| along the last axis."""
    return x / x.square().sum(-1, keepdim=True).sqrt().clamp_min(1e-12)


def activate(x: Tensor, name: str) -> Tensor:
    """Act(x); every Act(0) = 0."""
    return {
        "gelu": lambda: x * (1 + torch.erf(x / 2**0.5)) / 2,
        "silu": lambda: x * torch.sigmoid(x),
        "relu": lambda: x * (x > 0),
        "relu_square": lambda: x * x * (x > 0),
        "identity": lambda: x,
    }[name]()
