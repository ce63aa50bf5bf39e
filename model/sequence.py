"""Event sequences: how events enter a tower, rotary time, and attention among them.

Suffixes: E events (flat), P slots of the layout, W tower width, H heads, K head width, R = K / 2.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

import kernels
from kernels import Layout
from model.config import EventType, ModelConfig
from model.embedding import EventInputs

MINUTE_S = 60.0


@dataclass(frozen=True, slots=True)
class Sequence:
    """The events of one type in a layout: their state and, for attention, their angles."""

    state_PW: Tensor
    angle_PR: Tensor | None
    layout: Layout


class EventEntry(nn.Module):
    """Attributes' embeddings and the log times of an event, projected to the tower's width."""

    def __init__(self, event: EventType, config: ModelConfig) -> None:
        super().__init__()
        self.rote, self.tau_s = config.rote, config.rote_tau_s
        self.num_pairs = event.width // event.heads // 2
        self.project = nn.Linear(config.embedding_dim * len(event.attributes) + 2, event.width)

    def forward(self, inputs: EventInputs) -> Sequence:
        """Place the events of a batch in a layout."""
        layout = kernels.arrange(inputs.lengths_B)
        times_E2 = torch.stack([inputs.gap_E, inputs.age_E], dim=1).div(MINUTE_S).log1p().mul(0.2)
        state_EW = self.project(torch.cat([*inputs.embedded, times_E2], dim=1))
        return Sequence(layout.pack(state_EW), self._angles(inputs, layout), layout)

    def _angles(self, inputs: EventInputs, layout: Layout) -> Tensor | None:
        """ROTE (arXiv 2602.10016): t theta_r + tau_t theta_r, tau_t = log(1 + gap / tau_s)."""
        if self.rote == "none":
            return None
        lengths_B = inputs.lengths_B
        first_B = lengths_B.cumsum(0) - lengths_B
        at_E = torch.arange(inputs.gap_E.shape[0])
        at_E = at_E - torch.repeat_interleave(first_B, lengths_B)
        gap_E = inputs.gap_E if self.rote == "gap" else inputs.age_E
        time_E = at_E + torch.log1p(gap_E / self.tau_s)
        theta_R = 1e4 ** (-torch.arange(self.num_pairs) / self.num_pairs)
        return layout.pack(time_E[:, None] * theta_R)


class SequenceAttention(nn.Module):
    """Softmax self-attention in a tower, full or in a window on both sides of each event."""

    def __init__(self, event: EventType, config: ModelConfig) -> None:
        super().__init__()
        self.heads, self.num_pairs = event.heads, event.width // event.heads // 2
        self.window = event.window if config.attention == "window" else None
        self.norm = nn.LayerNorm(event.width)
        self.query_key = nn.Linear(event.width, 2 * event.width, bias=False)
        self.value = nn.Linear(event.width, event.width, bias=False)
        self.out = nn.Linear(event.width, event.width, bias=False)

    def forward(self, sequence: Sequence) -> Sequence:
        """S + Attention(Norm(S))."""
        normed_PW, shape = self.norm(sequence.state_PW), (-1, 2 * self.heads, 2 * self.num_pairs)
        both_PXK = self.query_key(normed_PW).view(shape)
        if sequence.angle_PR is not None:
            both_PXK = kernels.rotate(both_PXK, sequence.angle_PR)
        q_PHK, k_PHK = both_PXK.chunk(2, dim=1)
        v_PHK = self.value(normed_PW).view(q_PHK.shape)
        mixed_PHK = kernels.jagged_attention(
            q_PHK, k_PHK, v_PHK, sequence.layout, window=self.window
        )
        state_PW = sequence.state_PW + self.out(mixed_PHK.flatten(1))
        return Sequence(state_PW, sequence.angle_PR, sequence.layout)
