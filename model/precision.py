"""Which linear layers run in MXFP8, and the layer that can.

A layer that may run so is a `Linear`: the projections and generators of GDPA, the projections of
attention, the matrices of the interaction's factorization block. Everything else (embeddings,
norms, gates, heads, what works along tokens) is torch's own and stays in float32.

Suffixes: M rows, I inputs, O outputs.
"""

from __future__ import annotations

import difflib
from fnmatch import fnmatchcase

from torch import Tensor, nn

import kernels
from model.config import ModelConfig, require


class Linear(nn.Linear):
    """x W^T + b; when `low`, both factors, and those of the backward pass, in MXFP8."""

    low = False

    def forward(self, input: Tensor) -> Tensor:
        """[..., O]; the bias is added in float32."""
        if not self.low:
            return super().forward(input)
        product_MO = kernels.mxfp8_linear(input.flatten(0, -2), self.weight)
        output = product_MO.view(*input.shape[:-1], self.out_features)
        return output if self.bias is None else output + self.bias


def candidates(dense: nn.Module) -> dict[str, Linear]:
    """The layers that may run in MXFP8, by the names that `mxfp8_keep` matches."""
    return {name: part for name, part in dense.named_modules() if isinstance(part, Linear)}


def choose_precision(dense: nn.Module, config: ModelConfig) -> None:
    """Let the layers of a dense part run in MXFP8 where the config says so; weights stay.

    `ConfigError` for a pattern of `mxfp8_keep` that names no such layer, and when none is left.
    """
    if config.precision == "float32":
        return
    layers = candidates(dense)
    for pattern in config.mxfp8_keep:
        near = difflib.get_close_matches(pattern, layers, cutoff=0.0)
        require(
            any(fnmatchcase(name, pattern) for name in layers),
            "model.mxfp8_keep",
            "patterns of layers that can run in MXFP8",
            pattern,
            f"the nearest names are {near}; python -m pipeline probe lists them all",
        )
    late = [f"trunk.layers.{config.layers - 1 - i}.*" for i in range(config.mxfp8_keep_last)]
    kept = (*config.mxfp8_keep, *late)
    for name, layer in layers.items():
        layer.low = not any(fnmatchcase(name, pattern) for pattern in kept)
    require(
        any(layer.low for layer in layers.values()),
        "model.precision",
        f"float32: arch {config.arch} has {len(layers)} layers that can run in MXFP8, all are kept",
        config.precision,
        "keep fewer (mxfp8_keep, mxfp8_keep_last), or use float32",
    )


def precision_note(dense: nn.Module) -> str:
    """What the products of a dense part are computed in, for a log."""
    layers = candidates(dense).values()
    num_low = sum(layer.low for layer in layers)
    if not num_low:
        return "float32"
    how, reason = kernels.mxfp8_support()
    return f"mxfp8 in {num_low} of {len(layers)} layers that can, {how} ({reason})"
