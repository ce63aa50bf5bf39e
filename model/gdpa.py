"""The personalized feed-forward net: weights generated from the context act on every event.

GDPA (arXiv 2602.10016): per head O_h = Act(Q_h K_h^T / tau) V_h with Q_h = W_Q^h S and K, V from
the summary of X; the output is W_O [O_1 .. O_H]. Keys and values belong to the row, so W_Q and W_O
are multiplied into them once per row, (S W_Q^h) K_h^T = S (W_Q^h K_h^T): per event only the two
products with generated weights remain. With QK-norm that is impossible, with many keys it costs
more than it saves, and in MXFP8 the projections are products of their own (`folds`): then events
are projected.

Suffixes: B rows, n summary tokens, D model width, P slots, W tower width, H heads, K head width,
N keys per row.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import kernels
from kernels import Layout
from model.config import EventType, ModelConfig
from model.flops import folds
from model.interaction import along_tokens
from model.precision import Linear
from model.sequence import Sequence


class Summarize(nn.Module):
    """Token-axis linear N -> n of Norm(X), with a gate per summary token and channel.

    Without the norm (`summarize_norm`) large tokens of X drown the others.
    """

    def __init__(self, num_tokens: int, config: ModelConfig) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.width) if config.summarize_norm else nn.Identity()
        self.mix = nn.Linear(num_tokens, config.summary_tokens, bias=False)
        self.gate = nn.Linear(config.width, config.width)

    def forward(self, x_BND: Tensor) -> Tensor:
        """[B, n, D]."""
        mixed_BnD = along_tokens(self.mix.weight, self.norm(x_BND))
        return mixed_BnD * torch.sigmoid(self.gate(mixed_BnD))


class WeightGen(nn.Module):
    """Keys and values of one tower: n rows from the summary, and some straight from the ad.

    The rows from the ad (`gdpa_short_path`) are our addition: without them the ad reaches the
    events only through the summary, and small models find that path late.
    """

    def __init__(self, event: EventType, num_ad_tokens: int, config: ModelConfig) -> None:
        super().__init__()
        self.short_rows = config.gdpa_short_path if num_ad_tokens else 0
        self.hidden = Linear(config.width, 2 * event.width)
        self.out = Linear(2 * event.width, 2 * event.width)
        if self.short_rows:
            self.short = Linear(num_ad_tokens * config.width, self.short_rows * 2 * event.width)

    def forward(self, x_sum_BnD: Tensor, ad_BX: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values, [B, N, W] each."""
        kv_BNX = self.out(F.silu(self.hidden(x_sum_BnD)))
        if self.short_rows:
            short_BNX = self.short(ad_BX).view(-1, self.short_rows, kv_BNX.shape[2])
            kv_BNX = torch.cat([kv_BNX, short_BNX], dim=1)
        k_BNW, v_BNW = kv_BNX.chunk(2, dim=-1)
        return k_BNW, v_BNW


def score_scale(event: EventType, config: ModelConfig) -> float:
    """1 / tau: constant, so that a row's result does not depend on its batch.

    tau "auto" is sqrt(K), and 1 under QK-norm, where a learned gain scales the scores.
    """
    if not isinstance(config.gdpa_tau, str):
        return 1.0 / config.gdpa_tau
    if config.gdpa_tau == "max_len":
        return 1.0 / event.max_len
    if config.gdpa_tau == "auto" and config.qk_norm:
        return 1.0
    return float((event.width // event.heads) ** -0.5)


class PersonalizedFeedForward(nn.Module):
    """S + GDPA(Norm(S), W) for one tower."""

    def __init__(self, event: EventType, num_ad_tokens: int, config: ModelConfig) -> None:
        super().__init__()
        self.heads, self.head_width = event.heads, event.width // event.heads
        self.activations, self.scale = config.gdpa_activations, score_scale(event, config)
        self.norm = nn.LayerNorm(event.width)
        self.generate = WeightGen(event, num_ad_tokens, config)
        self.query = Linear(event.width, event.width, bias=False)
        self.out = Linear(event.width, event.width, bias=False)
        self.folds = folds(event, config.summary_tokens + self.generate.short_rows, config)
        # the gain starts at tau: scores start as cosines, outside of Act's linear range
        gain_H1 = torch.full((event.heads, 1), 1.0 / self.scale)
        self.gain = nn.Parameter(gain_H1) if config.qk_norm else None

    def forward(self, sequence: Sequence, x_sum_BnD: Tensor, ad_BX: Tensor) -> Sequence:
        """The tower after its personalized feed-forward net."""
        state_PW, layout = self.norm(sequence.state_PW), sequence.layout
        k_BNHK, v_BNHK = (
            x.view(*x.shape[:2], self.heads, self.head_width)
            for x in self.generate(x_sum_BnD, ad_BX)
        )
        run = self._folded if self.folds else self._projected
        state_PW = sequence.state_PW + run(state_PW, k_BNHK, v_BNHK, layout)
        return Sequence(state_PW, sequence.angle_PR, layout)

    def _folded(self, state_PW: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        """Heads that share an activation are one head with all of their keys."""
        shape = (self.heads, self.head_width, -1)
        k_BNHW = _per_head(k, self.query.weight.view(shape))
        v_BNHW = _per_head(v, self.out.weight.t().reshape(shape))
        turns = len(self.activations)
        parts = [
            kernels.gdpa(
                state_PW[:, None],
                k_BNHW[:, :, i::turns].flatten(1, 2)[:, None],
                v_BNHW[:, :, i::turns].flatten(1, 2)[:, None],
                layout,
                scale=self.scale,
                activation=name,
            )[:, 0]
            for i, name in enumerate(self.activations)
        ]
        return parts[0] if turns == 1 else torch.stack(parts).sum(0)

    def _projected(self, state_PW: Tensor, k: Tensor, v: Tensor, layout: Layout) -> Tensor:
        q_PHK = self.query(state_PW).view(-1, self.heads, self.head_width)
        k, v = k.transpose(1, 2), v.transpose(1, 2)
        if self.gain is not None:
            q_PHK, k = F.normalize(q_PHK, dim=-1) * self.gain, F.normalize(k, dim=-1)
        mixed_PHK = kernels.gdpa(q_PHK, k, v, layout, scale=self.scale, activation=self.activations)
        return self.out(mixed_PHK.flatten(1))


def _per_head(values_BNHK: Tensor, weight_HKW: Tensor) -> Tensor:
    """[B, N, H, W]: one product per head over all rows; one per row would copy the weight to it."""
    flat_HXK = values_BNHK.reshape(-1, *values_BNHK.shape[2:]).transpose(0, 1)
    product_HXW = torch.bmm(flat_HXK, weight_HKW)
    return product_HXW.transpose(0, 1).reshape(*values_BNHK.shape[:3], -1)
