"""The representation: shallow activations of the foundation model, compressed to a short code.

LoopFM (arXiv 2605.29280): an autoencoder trained beside the model, with no gradient into it; the
code ends in tanh, so that it quantizes well. Every prefix of the code (a quarter, a half, all of
it) must reconstruct the input, so any of them may be stored: rows decode the prefixes in turn
(nested dropout, arXiv 1402.0915), a third of the products of decoding every prefix of every row.

Suffixes: B rows, X activations, d code width, P prefixes.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


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
        return code_Bd, F.mse_loss(self.decode(code_Bd * self._kept(code_Bd)), target_BX)

    def _kept(self, code_Bd: Tensor) -> Tensor:
        """[B, d]: 1 within a row's prefix; the rows of a batch take the prefixes in turn."""
        rows, width = code_Bd.shape
        prefix_P = torch.tensor(self.prefixes, device=code_Bd.device)
        prefix_B = prefix_P[torch.arange(rows, device=code_Bd.device) % len(self.prefixes)]
        return torch.arange(width, device=code_Bd.device) < prefix_B[:, None]
