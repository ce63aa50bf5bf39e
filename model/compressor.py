"""The representation: activations of the foundation model, compressed to a short code.

LoopFM (arXiv 2605.29280): an autoencoder trained beside the model, with no gradient into it; the
code ends in tanh, so that it quantizes well. Every prefix of the code (a quarter, a half, all of
it) must reconstruct the input, so any of them may be stored.

Suffixes: B rows, X activations, d code width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.losses import prefix_loss


class Compressor(nn.Module):
    """Encoder and decoder around a tanh code of `code` numbers."""

    def __init__(self, num_inputs: int, hidden: int, code: int) -> None:
        super().__init__()
        self.num_inputs = num_inputs
        self.prefixes = tuple(sorted({max(1, code // 4), max(1, code // 2), code}))
        self.encode = nn.Sequential(
            nn.Linear(num_inputs, hidden), nn.SiLU(), nn.Linear(hidden, code), nn.Tanh()
        )
        self.decode = nn.Sequential(
            nn.Linear(code, hidden), nn.SiLU(), nn.Linear(hidden, num_inputs)
        )

    def forward(self, x_BX: Tensor) -> tuple[Tensor, Tensor]:
        """The code [B, d] and the reconstruction loss; `x_BX` gets no gradient."""
        target_BX = F.layer_norm(x_BX.detach(), (self.num_inputs,))
        code_Bd = self.encode(target_BX)
        if not self.training:
            return code_Bd, code_Bd.new_zeros(())
        kept = [torch.arange(code_Bd.shape[1]) < p for p in self.prefixes]
        stacked = self.decode(torch.stack([code_Bd * k for k in kept]))
        return code_Bd, prefix_loss(list(stacked), target_BX)
