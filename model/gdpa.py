"""The personalized feed-forward net: weights generated from the context act on every event.

GDPA (arXiv 2602.10016): per head O_h = Act(Q_h K_h^T / tau) V_h with Q_h = W_Q^h S and K, V from
the summary of X; the output is W_O [O_1 .. O_H]. Keys and values belong to the row, so W_Q and W_O
are multiplied into them once per row, (S W_Q^h) K_h^T = S (W_Q^h K_h^T): per event only the two
products with generated weights remain.

Suffixes: B rows, n summary tokens, D model width, P slots, W tower width, H heads, K head width,
N keys per row.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import kernels
from model.config import EventType, ModelConfig
from model.sequence import Sequence


class Summarize(nn.Module):
    """Token-axis linear N -> n of Norm(X), with a gate per summary token and channel."""

    def __init__(self, num_tokens: int, config: ModelConfig) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.width)
        self.mix = nn.Linear(num_tokens, config.summary_tokens, bias=False)
        self.gate = nn.Linear(config.width, config.width)

    def forward(self, x_BND: Tensor) -> Tensor:
        """[B, n, D]."""
        mixed_BnD = torch.matmul(self.mix.weight, self.norm(x_BND))
        return mixed_BnD * torch.sigmoid(self.gate(mixed_BnD))


class WeightGen(nn.Module):
    """Keys and values of one tower: n rows from the summary, and some straight from the ad.

    The rows from the ad (`gdpa_short_path`) are our addition: without them the ad reaches the
    events only through the summary, and small models find that path late.
    """

    def __init__(self, event: EventType, num_ad_tokens: int, config: ModelConfig) -> None:
        super().__init__()
        self.short_rows = config.gdpa_short_path if num_ad_tokens else 0
        self.hidden = nn.Linear(config.width, 2 * event.width)
        self.out = nn.Linear(2 * event.width, 2 * event.width)
        if self.short_rows:
            self.short = nn.Linear(num_ad_tokens * config.width, self.short_rows * 2 * event.width)

    def forward(self, x_sum_BnD: Tensor, ad_BX: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values, [B, N, W] each."""
        kv_BNX = self.out(F.silu(self.hidden(x_sum_BnD)))
        if self.short_rows:
            short_BNX = self.short(ad_BX).view(-1, self.short_rows, kv_BNX.shape[2])
            kv_BNX = torch.cat([kv_BNX, short_BNX], dim=1)
        k_BNW, v_BNW = kv_BNX.chunk(2, dim=-1)
        return k_BNW, v_BNW


class PersonalizedFeedForward(nn.Module):
    """S + GDPA(Norm(S), W) for one tower."""

    def __init__(self, event: EventType, num_ad_tokens: int, config: ModelConfig) -> None:
        super().__init__()
        self.heads, self.head_width = event.heads, event.width // event.heads
        self.activation, self.qk_norm = config.gdpa_activation, config.qk_norm
        self.norm = nn.LayerNorm(event.width)
        self.generate = WeightGen(event, num_ad_tokens, config)
        self.query = nn.Linear(event.width, event.width, bias=False)
        self.out = nn.Linear(event.width, event.width, bias=False)
        if self.qk_norm:
            self.gain = nn.Parameter(torch.ones(event.heads, 1))

    def forward(self, sequence: Sequence, x_sum_BnD: Tensor, ad_BX: Tensor) -> Sequence:
        """The tower after its personalized feed-forward net."""
        state_PW, layout = self.norm(sequence.state_PW), sequence.layout
        k_BHNK, v_BHNK = (
            x.view(*x.shape[:2], self.heads, self.head_width).transpose(1, 2)
            for x in self.generate(x_sum_BnD, ad_BX)
        )
        update_PW = (
            self._with_norm(state_PW, k_BHNK, v_BHNK, sequence)
            if self.qk_norm
            else self._folded(state_PW, k_BHNK, v_BHNK, sequence)
        )
        return Sequence(sequence.state_PW + update_PW, sequence.angle_PR, layout)

    def _folded(self, state_PW: Tensor, k: Tensor, v: Tensor, sequence: Sequence) -> Tensor:
        shape = (self.heads, self.head_width, -1)
        query_HKW, out_HKW = self.query.weight.view(shape), self.out.weight.t().reshape(shape)
        k_BNW, v_BNW = torch.matmul(k, query_HKW), torch.matmul(v, out_HKW)
        mixed_P1W = kernels.gdpa(
            state_PW[:, None],
            k_BNW.flatten(1, 2)[:, None],
            v_BNW.flatten(1, 2)[:, None],
            sequence.layout,
            scale=self.head_width**-0.5,
            activation=self.activation,
        )
        return mixed_P1W[:, 0]

    def _with_norm(self, state_PW: Tensor, k: Tensor, v: Tensor, sequence: Sequence) -> Tensor:
        q_PHK = F.normalize(self.query(state_PW).view(-1, self.heads, self.head_width), dim=-1)
        k = F.normalize(k, dim=-1)
        mixed_PHK = kernels.gdpa(
            q_PHK * self.gain, k, v, sequence.layout, scale=1.0, activation=self.activation
        )
        return self.out(mixed_PHK.flatten(1))
