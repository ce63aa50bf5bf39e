"""InterFormer (arXiv 2411.09852): context and sequences learn from each other's summaries.

    X_sum   = Gate(C_l X)                 cross arch: a token-axis linear, N -> n
    S_sum   = Gate([CLS | PMA | recent])  cross arch: 4 + 2 + 2 tokens of a tower
    X_{l+1} = Interaction([X | S_sum])    interaction arch: a Wukong layer
    S_{l+1} = MHA(PFFN(X_sum, S)),  PFFN(X_sum, S) = S W,  W = f(X_sum), one matrix per row
    Gate(Z) = sigmoid(Z * MLP(Z))

The CLS tokens are a summary of the input's X, put before the events; attention is full and rotary.
The heads read X and S_sum after the last layer. Where the paper is silent we do as for Kunlun:
residuals with the norm before PFFN and MHA, one tower per event type. Its `merge` of sequences
along the embedding axis needs sequences aligned event by event, which those of several tables are
not. A row without events has S_sum = 0.

Suffixes: B rows, N context tokens, n summary tokens, D model width, P slots, E events (flat),
W tower width, C prepended tokens, S marked slots, Z tokens of S_sum, R pairs of a head.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

import kernels
from kernels import Layout
from model.baselines.jagged import per_row_linear
from model.baselines.widths import (
    CLS_TOKENS,
    PMA_TOKENS,
    RECENT_TOKENS,
    SUMMARY,
    num_context_tokens,
)
from model.config import EventType, FeatureSet, ModelConfig
from model.interaction import TokenLinear, WukongLayer
from model.kunlun import Context, KunlunOutput, chosen, joined
from model.pooling import SeedAttention
from model.sequence import Sequence, SequenceAttention


class Gate(nn.Module):
    """sigmoid(Z * MLP(Z)), token by token."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))

    def forward(self, z_BZD: Tensor) -> Tensor:
        """[B, Z, D]."""
        return torch.sigmoid(z_BZD * self.mlp(z_BZD))


class ContextSummary(nn.Module):
    """X_sum: N tokens to a few, gated."""

    def __init__(self, num_tokens: int, num_summary: int, width: int) -> None:
        super().__init__()
        self.compress = TokenLinear(num_tokens, num_summary)
        self.gate = Gate(width)

    def forward(self, x_BND: Tensor) -> Tensor:
        """[B, n, D]."""
        return self.gate(self.compress(x_BND))


@dataclass(frozen=True, slots=True)
class Marked:
    """A tower behind its CLS tokens: where these and the latest events lie, and which exist."""

    sequence: Sequence
    slots_BS: Tensor
    exists_BZ1: Tensor


def prepend(sequence: Sequence, cls_BCW: Tensor) -> Marked:
    """The sequence of every row behind that row's CLS tokens (whose angles are 0)."""
    lengths_B, num_cls = sequence.layout.lengths_B, cls_BCW.shape[1]
    layout = kernels.arrange(lengths_B + num_cls)
    begin_B = (layout.lengths_B.cumsum(0) - layout.lengths_B)[:, None]
    row_E = torch.repeat_interleave(torch.arange(len(lengths_B)), layout.lengths_B)
    at_E = torch.arange(len(row_E)) - begin_B[row_E, 0]
    # flat events lie behind the CLS tokens of all rows, num_cls fewer before each of them
    event_E = torch.arange(len(row_E)) + (len(lengths_B) - 1 - row_E) * num_cls
    from_E = torch.where(at_E < num_cls, row_E * num_cls + at_E, event_E)

    def behind(before_BCX: Tensor, values_PX: Tensor) -> Tensor:
        both = torch.cat([before_BCX.flatten(0, 1), sequence.layout.unpack(values_PX)])
        return layout.pack(both.index_select(0, from_E))

    angle_PR = sequence.angle_PR
    if angle_PR is not None:
        angle_PR = behind(angle_PR.new_zeros(*cls_BCW.shape[:2], angle_PR.shape[1]), angle_PR)
    end_B = begin_B + layout.lengths_B[:, None]
    back = torch.arange(1, RECENT_TOKENS + 1)
    marks_BS = torch.cat([begin_B + torch.arange(num_cls), end_B - back], dim=1)
    needed_Z = torch.cat([torch.ones(num_cls + PMA_TOKENS), back])
    exists_BZ = lengths_B[:, None] >= needed_Z
    return Marked(
        Sequence(behind(cls_BCW, sequence.state_PW), angle_PR, layout),
        _slots(layout, marks_BS),
        exists_BZ[..., None],
    )


def _slots(layout: Layout, place_BS: Tensor) -> Tensor:
    return place_BS if layout.slot_E is None else layout.slot_E[place_BS]


class SequenceSummary(nn.Module):
    """S_sum of one tower: its CLS tokens, pooled ones and the latest events, gated, in width D."""

    def __init__(self, event: EventType, width: int) -> None:
        super().__init__()
        self.attend = SeedAttention(PMA_TOKENS, event.width, event.heads)
        self.gate = Gate(event.width)
        self.out = nn.Linear(event.width, width, bias=False)

    def forward(self, marked: Marked) -> Tensor:
        """[B, 8, D]; tokens that do not exist are zeros."""
        found_BSW = marked.sequence.state_PW[marked.slots_BS]
        cls_BCW, recent = found_BSW[:, :CLS_TOKENS], found_BSW[:, CLS_TOKENS:]
        z_BZW = torch.cat([cls_BCW, self.attend(marked.sequence), recent], dim=1)
        return self.out(self.gate(z_BZW) * marked.exists_BZ1)


class CrossArch(nn.Module):
    """S_sum of all towers, side by side."""

    def __init__(self, events: tuple[EventType, ...], width: int) -> None:
        super().__init__()
        self.towers = nn.ModuleDict({e.name: SequenceSummary(e, width) for e in events})

    def forward(self, marked: dict[str, Marked], x_BND: Tensor) -> Tensor:
        """[B, Z, D] (Z = 0 without towers)."""
        return joined({n: summary(marked[n]) for n, summary in self.towers.items()}, x_BND)


class PersonalizedLinear(nn.Module):
    """S + Norm(S) W with W = f(X_sum), one layer, a matrix of its own for each row."""

    def __init__(self, event: EventType, config: ModelConfig) -> None:
        super().__init__()
        self.width = event.width
        self.norm = nn.LayerNorm(event.width)
        self.weight = nn.Linear(config.summary_tokens * config.width, event.width**2)

    def forward(self, sequence: Sequence, x_sum_BnD: Tensor) -> Sequence:
        """The tower after its personalized feed-forward net."""
        weight_BWW = self.weight(x_sum_BnD.flatten(1)).view(-1, self.width, self.width)
        update_PW = per_row_linear(
            self.norm(sequence.state_PW), weight_BWW * self.width**-0.5, sequence.layout
        )
        return replace(sequence, state_PW=sequence.state_PW + update_PW)


class InterFormerLayer(nn.Module):
    """Interaction arch and sequence arch, each with the other's summary."""

    def __init__(self, events: tuple[EventType, ...], num_x: int, config: ModelConfig) -> None:
        super().__init__()
        self.interact = WukongLayer(num_x + SUMMARY * len(events), num_x, config)
        if events:
            full = replace(config, attention="full")
            self.summarize = ContextSummary(num_x, config.summary_tokens, config.width)
            self.feed_forward = nn.ModuleDict(
                {e.name: PersonalizedLinear(e, config) for e in events}
            )
            self.attention = nn.ModuleDict({e.name: SequenceAttention(e, full) for e in events})

    def forward(
        self, x_BND: Tensor, towers: dict[str, Marked], s_sum_BZD: Tensor
    ) -> tuple[Tensor, dict[str, Marked]]:
        """The next X and towers."""
        next_BND = self.interact(torch.cat([x_BND, s_sum_BZD], dim=1))
        x_sum_BnD = self.summarize(x_BND) if towers else x_BND
        after = {}
        for name, marked in towers.items():
            sequence = self.feed_forward[name](marked.sequence, x_sum_BnD)
            after[name] = replace(marked, sequence=self.attention[name](sequence))
        return next_BND, after


class InterFormer(nn.Module):
    """The stack, with one cross arch more than layers: the heads read the last sequences too."""

    def __init__(self, features: FeatureSet, config: ModelConfig) -> None:
        super().__init__()
        num_x, events = num_context_tokens(features), features.events
        if events:
            self.cls = ContextSummary(num_x, CLS_TOKENS, config.width)
            self.enter = nn.ModuleDict({e.name: nn.Linear(config.width, e.width) for e in events})
        self.layers = nn.ModuleList(
            InterFormerLayer(events, num_x, config) for _ in range(config.layers)
        )
        self.cross = nn.ModuleList(
            CrossArch(events, config.width) for _ in range(config.layers + 1)
        )
        self.represented = config.representation_layers

    def forward(self, x_BND: Tensor, towers: dict[str, Sequence], context: Context) -> KunlunOutput:
        """Run all layers."""
        marked: dict[str, Marked] = {}
        if towers:
            cls_BCD = self.cls(x_BND)
            marked = {n: prepend(s, self.enter[n](cls_BCD)) for n, s in towers.items()}
        states = [x_BND]
        for layer, cross in zip(self.layers, self.cross, strict=False):
            x_BND, marked = layer(x_BND, marked, cross(marked, x_BND))
            states.append(x_BND)
        return KunlunOutput(x_BND, self.cross[-1](marked, x_BND), chosen(states, self.represented))
