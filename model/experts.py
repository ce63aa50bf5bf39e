"""Per-surface experts on the shared trunk: a low-rank adapter and a gate, zero at the start.

Suffixes: B rows, M trunk width, Z surfaces, r adapter rank.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class SurfaceExperts(nn.Module):
    """x (1 + gate_z) + U_z V_z x for a row of surface z; equals x before training."""

    def __init__(self, num_surfaces: int, width: int, rank: int) -> None:
        super().__init__()
        self.num_surfaces, self.rank = num_surfaces, rank
        self.down = nn.Linear(width, num_surfaces * rank, bias=False)
        self.up = nn.Linear(num_surfaces * rank, width, bias=False)
        self.gate = nn.Linear(num_surfaces, width, bias=False)
        nn.init.zeros_(self.up.weight)
        nn.init.zeros_(self.gate.weight)

    def forward(self, x_BM: Tensor, surface_B: Tensor) -> Tensor:
        """[B, M]; all surfaces' adapters are one product, and a mask keeps the row's own."""
        own_BZ = F.one_hot(surface_B, self.num_surfaces).to(x_BM.dtype)
        low_BX = self.down(x_BM) * torch.repeat_interleave(own_BZ, self.rank, dim=1)
        return x_BM * (1.0 + self.gate(own_BZ)) + self.up(low_BX)
