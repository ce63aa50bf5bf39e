"""From a jagged sequence to a few tokens: hierarchical seed pooling, and plain seed attention.

HSP (arXiv 2602.10016): learnable seeds read the sequence, Z = MHA(Norm(E), S, S); a SumKronLinear
compresses them, H = sum_i A_i^T Z W_i. Seeds are shared by all rows, so W_K is multiplied into
the seeds and W_V is applied after pooling: nothing is projected per event.

Suffixes: B rows, P slots, S seeds, Y seeds of all rows, Q pooled tokens, W tower width, D model
width, H heads, K head width, k rank.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import kernels
from model.config import EventType
from model.interaction import along_tokens
from model.sequence import Sequence


class SeedAttention(nn.Module):
    """Multi-head softmax attention of learnable seeds over a sequence."""

    def __init__(self, num_seeds: int, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.head_width = heads, width // heads
        self.seeds_SW = nn.Parameter(torch.randn(num_seeds, width))
        self.norm = nn.LayerNorm(width)
        self.seed_norm = nn.LayerNorm(width)
        self.query = nn.Linear(width, width, bias=False)
        self.key_HKW = nn.Parameter(torch.randn(heads, self.head_width, width) * width**-0.5)
        self.value_HWK = nn.Parameter(torch.randn(heads, width, self.head_width) * width**-0.5)

    def forward(self, sequence: Sequence) -> Tensor:
        """[B, S, W]; rows without events give zeros."""
        query_HSK = self.query(self.seed_norm(self.seeds_SW)).view(-1, self.heads, self.head_width)
        folded_HSW = torch.matmul(query_HSK.transpose(0, 1), self.key_HKW)
        # the op divides by sqrt of its own key width W; the head's is K
        folded_SHW = (folded_HSW * (self.heads**0.5)).transpose(0, 1)
        state_P1W = self.norm(sequence.state_PW)[:, None]
        pooled_BX1W = kernels.seed_attention(
            folded_SHW.flatten(0, 1)[:, None], state_P1W, state_P1W, sequence.layout
        )
        # one product per head over all rows' seeds; a product per row would copy W_V to each
        pooled_YHW = pooled_BX1W.reshape(-1, self.heads, self.seeds_SW.shape[1])
        z_HYK = torch.bmm(pooled_YHW.transpose(0, 1), self.value_HWK)
        return z_HYK.transpose(0, 1).reshape(-1, *self.seeds_SW.shape)


class SumKronLinear(nn.Module):
    """[S, W] -> [Q, D] by sum_i A_i^T Z W_i, rank k: 2k(SQW + QWD) FLOPs per row."""

    def __init__(self, seeds: int, tokens: int, width: int, out_width: int, rank: int) -> None:
        super().__init__()
        self.tokens = tokens
        self.rows_XS = nn.Parameter(torch.randn(tokens * rank, seeds) * seeds**-0.5)
        self.columns = nn.Linear(rank * width, out_width, bias=False)

    def forward(self, z_BSW: Tensor) -> Tensor:
        """[B, Q, D]."""
        mixed_BXW = along_tokens(self.rows_XS, z_BSW)
        return self.columns(mixed_BXW.view(-1, self.tokens, self.columns.in_features))


class PlainCompress(nn.Module):
    """[S, W] -> [Q, D] by one linear along the tokens, and one of the widths where they differ."""

    def __init__(self, seeds: int, tokens: int, width: int, out_width: int) -> None:
        super().__init__()
        self.rows_QS = nn.Parameter(torch.randn(tokens, seeds) * seeds**-0.5)
        same = width == out_width
        self.columns = nn.Identity() if same else nn.Linear(width, out_width, bias=False)

    def forward(self, z_BSW: Tensor) -> Tensor:
        """[B, Q, D]."""
        return self.columns(along_tokens(self.rows_QS, z_BSW))


class SeedPooling(nn.Module):
    """HSP of one tower, to `event.tokens` tokens of the model's width; rank 0: no SumKron."""

    def __init__(self, event: EventType, seeds: int, rank: int, width: int) -> None:
        super().__init__()
        self.attend = SeedAttention(seeds, event.width, event.heads)
        self.compress = (
            SumKronLinear(seeds, event.tokens, event.width, width, rank)
            if rank
            else PlainCompress(seeds, event.tokens, event.width, width)
        )

    def forward(self, sequence: Sequence) -> Tensor:
        """[B, Q, D]."""
        return self.compress(self.attend(sequence))


class PlainPooling(nn.Module):
    """PMA: one seed per pooled token, no compression; also the read-out of the last sequence."""

    def __init__(self, event: EventType, width: int) -> None:
        super().__init__()
        self.attend = SeedAttention(event.tokens, event.width, event.heads)
        self.out = nn.Linear(event.width, width, bias=False)

    def forward(self, sequence: Sequence) -> Tensor:
        """[B, Q, D]."""
        return self.out(self.attend(sequence))
