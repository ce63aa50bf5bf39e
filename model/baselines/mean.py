"""Towers of which only the mean is read: events are averaged first and projected once per row.

The mean is linear, mean_j(P s_j + p) = P mean_j(s_j) + p, so this equals `EventEntry` and then the
mean (`Sequence.mean`), without a product per event and without a layout.

Suffixes: B rows, E events (flat, row-major), W tower width, X any width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.config import EventType, ModelConfig
from model.embedding import EventInputs
from model.sequence import entry_linear, log_times


@dataclass(frozen=True, slots=True)
class Mean:
    """All that is kept of a tower; answers `mean` as a `Sequence` does."""

    mean_BW: Tensor

    def mean(self) -> Tensor:
        """[B, W]; rows without events are zeros."""
        return self.mean_BW


class MeanEntry(nn.Module):
    """`EventEntry` with the mean taken before the projection; the same parameters."""

    def __init__(self, event: EventType, config: ModelConfig) -> None:
        super().__init__()
        self.project = entry_linear(event, config)

    def forward(self, inputs: EventInputs, owner_B: Tensor | None = None) -> Mean:
        """Mean of the events of each row, in the tower's width; `owner_B` as in `EventEntry`."""
        blocks = (*inputs.embedded, log_times(inputs))
        mean_BX = torch.cat([mean_of_rows(x, inputs.lengths_B) for x in blocks], dim=1)
        mean_BW = self.project(mean_BX) * (inputs.lengths_B > 0)[:, None]
        return Mean(mean_BW if owner_B is None else mean_BW.index_select(0, owner_B))


def mean_of_rows(values_EX: Tensor, lengths_B: Tensor) -> Tensor:
    """[B, X]: mean of each row's flat events; rows without events give zeros."""
    mean_BX: Tensor = _MeanOfRows.apply(  # type: ignore[no-untyped-call]
        values_EX, lengths_B
    )
    return mean_BX


class _MeanOfRows(torch.autograd.Function):
    """A bag per row over events in their order: nothing is copied, the gradient is one gather."""

    @staticmethod
    def forward(ctx: Any, values_EX: Tensor, lengths_B: Tensor) -> Tensor:
        """Sum by row, over the row's number of events."""
        share_B1 = lengths_B.clamp_min(1).to(values_EX.dtype).reciprocal()[:, None]
        ctx.save_for_backward(lengths_B, share_B1)
        if values_EX.shape[0] == 0:
            return values_EX.new_zeros(lengths_B.shape[0], values_EX.shape[1])
        events_E = torch.arange(values_EX.shape[0], device=values_EX.device)
        begin_B = lengths_B.cumsum(0) - lengths_B
        return F.embedding_bag(events_E, values_EX, begin_B, mode="sum") * share_B1

    @staticmethod
    def backward(ctx: Any, grad_BX: Tensor) -> Any:
        """Each event gets its share of the row's gradient."""
        lengths_B, share_B1 = ctx.saved_tensors
        return torch.repeat_interleave(grad_BX * share_B1, lengths_B, dim=0), None
