"""Kunlun (arXiv 2602.10016): the layer of its Algorithm 1, and the stack. Start reading here.

X [B, N, D] are the context tokens (one per sparse feature, one for all numbers). Each event type
has a tower: S, its events in a jagged layout, and H [B, Q, D], what was pooled from it. Layer l:

    W  = WeightGen(Summarize(X))          gdpa.py: keys and values, made for each row and tower
    S~ = GDPA(Norm(S), W) + S             gdpa.py, unless skip_pffn
    H  = HSP(S~)                          pooling.py, unless skip_hsp (then H of the layer before)
    X  = GlobalInteraction([X | H])       interaction.py: a mixture of Wukong experts, always
    S  = WindowAttention(Norm(S~)) + S~   sequence.py, unless skip_self_attention

CompSkip: even layers skip self-attention, odd ones skip the rest (`ModelConfig.pools`, `attends`).
Event-level personalization: each `EventType` has its own width, heads, tokens, window and number
of layers; after its last layer a tower rests and its H is reused. A tower that ends on
self-attention is pooled once more by PMA, so that no layer works in vain, or skips that attention.

With `gdpa_context = user` nothing in a tower depends on the ad: then one tower serves all rows of a
user (`Context.owner_B`), and only X and the interaction are made for every row.

The same from the equations, without batches: reference/stack.py. Every switch: docs/kunlun.md.

Suffixes: B rows, U towers that rows share, N context tokens, n summary tokens, D model width,
Q pooled tokens of all towers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from model.config import EventType, FeatureSet, ModelConfig, check_towers
from model.gdpa import PersonalizedFeedForward, Summarize
from model.interaction import GlobalInteraction
from model.pooling import PlainPooling, SeedPooling
from model.sequence import Sequence, SequenceAttention


@dataclass(frozen=True, slots=True)
class Context:
    """The tokens at the input: what GDPA may read besides X."""

    ad_BX: Tensor  # the ad's own tokens, flattened
    user_BND: Tensor | None  # user and request tokens, when towers must not see the ad
    owner_B: Tensor | None = None  # the tower that a row of X reads; None: its own


@dataclass(frozen=True, slots=True)
class KunlunOutput:
    """X of the last layer, H as the heads read it, and the X that the representation is made of."""

    x_BND: Tensor
    h_BQD: Tensor
    represented_BND: Tensor


class KunlunLayer(nn.Module):
    """One layer of Algorithm 1 over all towers; modules exist for the towers that run them."""

    def __init__(self, layer: int, features: FeatureSet, config: ModelConfig) -> None:
        super().__init__()
        tokens = Tokens.of(features, config)
        pooled = [e for e in features.events if config.pools(e, layer)]
        fed = pooled if config.pffn == "gdpa" else []
        attending = [e for e in features.events if config.attends(e, layer)]
        self.summarize = Summarize(tokens.context, config) if fed else None
        self.feed_forward = nn.ModuleDict(
            {e.name: PersonalizedFeedForward(e, tokens.ad, config) for e in fed}
        )
        self.pool = nn.ModuleDict({e.name: _pooling(e, config) for e in pooled})
        self.attention = nn.ModuleDict({e.name: SequenceAttention(e, config) for e in attending})
        self.interact = GlobalInteraction(tokens.x, tokens.pooled, layer, config)

    def forward(
        self, x_BND: Tensor, towers: dict[str, Sequence], h: dict[str, Tensor], context: Context
    ) -> tuple[Tensor, dict[str, Sequence], dict[str, Tensor]]:
        """The next X, towers and H."""
        towers, h = dict(towers), dict(h)
        if self.summarize is not None:
            read_BND = x_BND if context.user_BND is None else context.user_BND
            x_sum_BnD = self.summarize(read_BND)
            for name, feed_forward in self.feed_forward.items():
                towers[name] = feed_forward(towers[name], x_sum_BnD, context.ad_BX)
        for name, pool in self.pool.items():
            h[name] = pool(towers[name])
        x_BND = self.interact(x_BND, of_rows(joined(h, x_BND), context.owner_B))
        for name, attention in self.attention.items():
            towers[name] = attention(towers[name])
        return x_BND, towers, h


class Kunlun(nn.Module):
    """The stack of layers, and a read-out of each tower that ends on self-attention."""

    def __init__(self, features: FeatureSet, config: ModelConfig) -> None:
        super().__init__()
        check_towers(features, config)
        self.represented = config.representation_layers
        self.heads_read_h = config.heads_read == "x_and_h"
        self.last = {e.name: config.layers_of(e) - 1 for e in features.events}
        self.layers = nn.ModuleList(
            KunlunLayer(layer, features, config) for layer in range(config.layers)
        )
        self.read_out = nn.ModuleDict(
            {e.name: PlainPooling(e, config.width) for e in features.events if config.reads_out(e)}
        )

    def forward(self, x_BND: Tensor, towers: dict[str, Sequence], context: Context) -> KunlunOutput:
        """Run all layers."""
        h: dict[str, Tensor] = {}
        states = [x_BND]
        for i, layer in enumerate(self.layers):
            x_BND, towers, h = layer(x_BND, towers, h, context)
            states.append(x_BND)
            for name, read in self.read_out.items():
                if self.last[name] == i:
                    h[name] = read(towers[name])
        h_BQD = joined(h if self.heads_read_h else {}, x_BND)
        h_BQD = of_rows(h_BQD, context.owner_B)
        return KunlunOutput(x_BND, h_BQD, chosen(states, self.represented))


@dataclass(frozen=True, slots=True)
class Tokens:
    """Numbers of tokens: X, H that heads read, H pooled, those that GDPA summarizes, the ad's."""

    x: int
    h: int
    pooled: int
    context: int
    ad: int

    @staticmethod
    def of(features: FeatureSet, config: ModelConfig) -> Tokens:
        """The token counts of a model."""
        x = len(features.sparse) + bool(features.dense_columns)
        ad = sum(f.scope == "ad" for f in features.sparse)
        pooled = sum(e.tokens for e in features.events)
        return Tokens(
            x=x,
            h=pooled if config.heads_read == "x_and_h" else 0,
            pooled=pooled,
            context=len(features.sparse) - ad if config.gdpa_context == "user" else x,
            ad=ad,
        )


def chosen(states: list[Tensor], layers: tuple[int, ...]) -> Tensor:
    """The states after some layers, counted from 1, side by side along dimension 1."""
    return torch.cat([states[layer] for layer in layers], dim=1)


def joined(h: dict[str, Tensor], x_BND: Tensor) -> Tensor:
    """H of all towers, [B, Q, D] (Q = 0 without towers)."""
    return torch.cat(list(h.values()), dim=1) if h else x_BND[:, :0]


def of_rows(h_UQD: Tensor, owner_B: Tensor | None) -> Tensor:
    """H of the tower that each row reads, [B, Q, D]."""
    if owner_B is None or not h_UQD.shape[1]:
        return h_UQD
    return h_UQD.index_select(0, owner_B)


def _pooling(event: EventType, config: ModelConfig) -> nn.Module:
    if config.pooling == "pma":
        return PlainPooling(event, config.width)
    return SeedPooling(event, config.seeds, config.sumkron_rank, config.width)
