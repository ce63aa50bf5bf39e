"""How much of each linear layer's signal survives MXFP8, measured on real batches.

SQNR is 10 log10 of signal over rounding noise, both as sums of squares. Layers run in float32 and
each is judged alone, on the inputs and gradients that it really gets: its input and weight, the
product of both (the bias left out), the gradient that arrives at its output.

Suffixes: M rows, N columns, I inputs, O outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

import kernels
from model.batch import Batch
from model.precision import Linear, candidates

THRESHOLD_DB = 20.0


@dataclass(kw_only=True)
class LayerSqnr:
    """The worst batch's SQNR in dB; infinite where nothing was rounded or no signal came."""

    input_db: float = float("inf")
    weight_db: float = float("inf")
    output_db: float = float("inf")
    gradient_db: float = float("inf")

    def is_safe(self, threshold_db: float = THRESHOLD_DB) -> bool:
        """Whether both what leaves the layer and what comes back keep their signal.

        E4M3 rounds with about 31 dB, a product of two such factors has about 28; at 20 dB a
        hundredth of the power is noise, which means that the products cancel or that one outlier
        sets the scale of its block.
        """
        return min(self.output_db, self.gradient_db) >= threshold_db

    def note(self, what: str, exact_MN: Tensor, rounded_MN: Tensor) -> None:
        """Keep the lower of what is known and this pair's SQNR."""
        if exact_MN.count_nonzero():
            found = kernels.sqnr_db(exact_MN, rounded_MN)
            setattr(self, what, min(getattr(self, what), found))


def probe(
    dense: nn.Module, loss: Callable[[Batch], Tensor], batches: Iterable[Batch]
) -> dict[str, LayerSqnr]:
    """SQNR of every layer that can run in MXFP8, by its name; all of them must be in float32.

    `loss` runs the model that `dense` is part of, whose weights require gradients.
    """
    layers = candidates(dense)
    found = {name: LayerSqnr() for name in layers}
    hooks = [
        layer.register_forward_hook(partial(_watch, found[name])) for name, layer in layers.items()
    ]
    try:
        for batch in batches:
            loss(batch).backward()
    finally:
        for hook in hooks:
            hook.remove()
        dense.zero_grad(set_to_none=True)
    return found


def _watch(found: LayerSqnr, layer: Linear, inputs: tuple[Tensor], output: Tensor) -> None:
    with torch.no_grad():
        x_MI, weight_OI = inputs[0].flatten(0, -2), layer.weight
        found.note("input_db", x_MI, _rounded(x_MI))
        found.note("weight_db", weight_OI, _rounded(weight_OI, square=True))
        found.note("output_db", x_MI @ weight_OI.T, kernels.mxfp8_linear(x_MI, weight_OI))

    def watch_gradient(gradient: Tensor) -> None:
        gradient_MO = gradient.flatten(0, -2)
        found.note("gradient_db", gradient_MO, _rounded(gradient_MO))

    output.register_hook(watch_gradient)


def _rounded(x_MN: Tensor, *, square: bool = False) -> Tensor:
    return kernels.mxfp8_dequantize(kernels.mxfp8_quantize(x_MN, square=square))
