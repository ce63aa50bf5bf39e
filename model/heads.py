"""Task heads: one small MLP per objective on the trunk, and a bias per surface.

Suffixes: B rows, X inputs, M trunk width, K objectives, L head width, Z surfaces.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.config import ModelConfig
from model.experts import SurfaceExperts


class Heads(nn.Module):
    """Trunk -> surface experts -> logits of all objectives."""

    def __init__(
        self, num_inputs: int, num_surfaces: int, num_objectives: int, config: ModelConfig
    ) -> None:
        super().__init__()
        self.trunk = nn.Linear(num_inputs, config.mlp_width)
        self.experts = (
            SurfaceExperts(num_surfaces, config.mlp_width, config.adapter_rank)
            if config.surface_experts
            else None
        )
        self.hidden = nn.Linear(config.mlp_width, num_objectives * config.head_width)
        self.out_KL = nn.Parameter(
            torch.randn(num_objectives, config.head_width) * config.head_width**-0.5
        )
        self.bias_ZK = nn.Parameter(torch.zeros(num_surfaces, num_objectives))

    def forward(self, x_BX: Tensor, surface_B: Tensor) -> Tensor:
        """Logits [B, K]."""
        trunk_BM = F.silu(self.trunk(x_BX))
        if self.experts is not None:
            trunk_BM = self.experts(trunk_BM, surface_B)
        hidden_BKL = F.silu(self.hidden(trunk_BM)).view(-1, *self.out_KL.shape)
        own_BZ = F.one_hot(surface_B, self.bias_ZK.shape[0]).to(x_BX.dtype)
        return (hidden_BKL * self.out_KL).sum(-1) + own_BZ @ self.bias_ZK

    @torch.no_grad()
    def set_prior(self, rate_ZK: Tensor) -> None:
        """Start the biases at the log-odds of the surfaces' and objectives' base rates."""
        self.bias_ZK.copy_(prior_bias(rate_ZK))


def prior_bias(rate_ZK: Tensor) -> Tensor:
    """The log-odds of base rates."""
    return torch.logit(rate_ZK.clamp(1e-4, 1 - 1e-4))
