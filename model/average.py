"""An exponential average of weights, bias-corrected, for evaluation and export.

After n steps the average is sum_i d^(n-i) (1-d) x_i / (1 - d^n). An update may cover several steps
at once (`gap`): the current value then stands for all of them, which makes averaging large tables
cheap. Rows that are not touched between updates keep their value, and so does their average.
"""

from __future__ import annotations

import torch
from torch import Tensor


class WeightAverage:
    """Averages of a fixed list of tensors; `values` are the averages, `steps` what they cover."""

    def __init__(self, tensors: dict[str, Tensor], decay: float) -> None:
        self.decay, self.steps = decay, 0
        self._tensors = tensors
        self.values = {name: t.detach().clone() for name, t in tensors.items()}

    def restart(self) -> None:
        """Forget what was averaged and begin at the current values."""
        self.steps = 0
        for value, current in zip(self.values.values(), self._current(), strict=True):
            value.copy_(current)

    @torch.no_grad()
    def update(self, steps: int) -> None:
        """Bring the averages up to step `steps`; a call for the same step changes nothing."""
        gap = steps - self.steps
        if gap <= 0:
            return
        weight = self._weight(steps, gap)
        torch._foreach_lerp_(list(self.values.values()), self._current(), weight)
        self.steps = steps

    @torch.no_grad()
    def at(self, steps: int) -> dict[str, Tensor]:
        """The averages as of step `steps`, without changing them."""
        gap = steps - self.steps
        if gap <= 0:
            return {name: v.clone() for name, v in self.values.items()}
        weight = self._weight(steps, gap)
        return {
            name: torch.lerp(v, t, weight)
            for (name, v), t in zip(self.values.items(), self._current(), strict=True)
        }

    def _current(self) -> list[Tensor]:
        return [t.detach() for t in self._tensors.values()]

    def _weight(self, steps: int, gap: int) -> float:
        kept: float = 1.0 - self.decay**steps
        return (1.0 - self.decay**gap) / kept
