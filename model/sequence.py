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
from model.precision import Linear

MINUTE_S = 60.0
ATTENDING = ("kunlun", "interformer")


@dataclass(frozen=True, slots=True)
class Sequence:
    """The events of one type in a layout: their state and, for attention, their angles."""

    state_PW: Tensor
    angle_PR: Tensor | None
    layout: Layout

    def mean(self) -> Tensor:
        """[B, W]: the mean state of each row's events; rows without events give zeros."""
        return kernels.jagged_pool(self.state_PW, self.layout)


class EventEntry(nn.Module):
    """Attributes' embeddings and the log times of an event, projected to the tower's width."""

    def __init__(self, event: EventType, config: ModelConfig) -> None:
        super().__init__()
        # only trunks with attention among events read angles
        self.rote = config.rote if config.arch in ATTENDING else "none"
        self.tau_s = config.rote_tau_s
        self.theta_base, self.phi_base = config.rote_theta_base, config.rote_phi_base
        self.num_pairs = event.width // event.heads // 2
        self.project = entry_linear(event, config)

    def forward(self, inputs: EventInputs, owner_B: Tensor | None = None) -> Sequence:
        """Place the events of a batch in a layout.

        With `owner_B` row b has the events of history `owner_B[b]`: they are projected once.
        """
        state_EW = self.project(torch.cat([*inputs.embedded, log_times(inputs)], dim=1))
        angle_ER, lengths_B = self._angles(inputs), inputs.lengths_B
        if owner_B is not None:
            place_E, lengths_B = repeated(lengths_B, owner_B)
            state_EW = state_EW.index_select(0, place_E)
            angle_ER = None if angle_ER is None else angle_ER.index_select(0, place_E)
        layout = kernels.arrange(lengths_B)
        angle_PR = None if angle_ER is None else layout.pack(angle_ER)
        return Sequence(layout.pack(state_EW), angle_PR, layout)

    def _angles(self, inputs: EventInputs) -> Tensor | None:
        """ROTE (arXiv 2602.10016): t theta_r + tau_t phi_r, tau_t = log(1 + gap / tau_s)."""
        if self.rote == "none":
            return None
        lengths_B = inputs.lengths_B
        first_B = lengths_B.cumsum(0) - lengths_B
        at_E = torch.arange(inputs.gap_E.shape[0])
        at_E = at_E - torch.repeat_interleave(first_B, lengths_B)
        gap_E = inputs.gap_E if self.rote == "gap" else inputs.age_E
        tau_E, theta_R = torch.log1p(gap_E / self.tau_s), self._speeds(self.theta_base, gap_E)
        if self.phi_base is None:
            return (at_E + tau_E)[:, None] * theta_R
        phi_R = self._speeds(self.phi_base, gap_E)
        return at_E[:, None] * theta_R + tau_E[:, None] * phi_R

    def _speeds(self, base: float, like: Tensor) -> Tensor:
        """Angle of each pair per unit of position: base ** (-r / R)."""
        at_R: Tensor = torch.arange(self.num_pairs, dtype=like.dtype)
        return base ** (-at_R / self.num_pairs)


def repeated(lengths_U: Tensor, owner_B: Tensor) -> tuple[Tensor, Tensor]:
    """Places of the events of every row's history, concatenated, and the rows' lengths."""
    lengths_B = lengths_U[owner_B]
    begin_B = (lengths_U.cumsum(0) - lengths_U)[owner_B]
    before_B = lengths_B.cumsum(0) - lengths_B
    place_E = torch.repeat_interleave(begin_B - before_B, lengths_B)
    return place_E + torch.arange(len(place_E)), lengths_B


def entry_linear(event: EventType, config: ModelConfig) -> nn.Linear:
    """From an event's embeddings and times to its tower's width."""
    return nn.Linear(config.embedding_dim * len(event.attributes) + 2, event.width)


def log_times(inputs: EventInputs) -> Tensor:
    """[E, 2]: gap and age of each event, in scaled log minutes."""
    return torch.stack([inputs.gap_E, inputs.age_E], dim=1).div(MINUTE_S).log1p().mul(0.2)


class SequenceAttention(nn.Module):
    """Softmax self-attention in a tower: full, in a window on both sides, or in diagonal blocks.

    Window and block are linear in the number of events (arXiv 2602.10016).
    """

    def __init__(self, event: EventType, config: ModelConfig) -> None:
        super().__init__()
        self.heads, self.head_width = event.heads, event.width // event.heads
        self.window = event.window if config.attention == "window" else None
        self.block = config.attention_block if config.attention == "block" else None
        self.norm = nn.LayerNorm(event.width)
        self.query_key = Linear(event.width, 2 * event.width, bias=False)
        self.value = Linear(event.width, event.width, bias=False)
        self.out = Linear(event.width, event.width, bias=False)

    def forward(self, sequence: Sequence) -> Sequence:
        """S + Attention(Norm(S))."""
        normed_PW = self.norm(sequence.state_PW)
        both_PXK = self.query_key(normed_PW).view(-1, 2 * self.heads, self.head_width)
        q_PHK, k_PHK = both_PXK.chunk(2, dim=1)
        v_PHK = self.value(normed_PW).view(q_PHK.shape)
        mixed_PHK = kernels.jagged_attention(
            q_PHK,
            k_PHK,
            v_PHK,
            sequence.layout,
            window=self.window,
            block=self.block,
            angle_PR=sequence.angle_PR,
        )
        state_PW = sequence.state_PW + self.out(mixed_PHK.flatten(1))
        return Sequence(state_PW, sequence.angle_PR, sequence.layout)
