"""Kunlun (arXiv 2602.10016): the layer of its Algorithm 1, and the stack. Start reading here.

X [B, N, D] are the context tokens (one per sparse feature, one for all numbers). Each event type
has a tower: S, its events in a jagged layout, and H [B, Q, D], what was pooled from it.

    W  = WeightGen(Summarize(X))         one set of keys and values per row and tower
    S  = S + GDPA(Norm(S), W)            unless skipped (odd layers, with CompSkip)
    H  = HSP(S)                          unless skipped (then H of the layer before)
    X  = GlobalInteraction([X | H])      always
    S  = S + WindowAttention(Norm(S))    unless skipped (even layers, with CompSkip)

After the last attention each tower is read out once more (PMA), so that no layer works in vain.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from model.config import EventType, FeatureSet, ModelConfig
from model.gdpa import PersonalizedFeedForward, Summarize
from model.interaction import GlobalInteraction
from model.pooling import PlainPooling, SeedPooling
from model.sequence import Sequence, SequenceAttention


@dataclass(frozen=True, slots=True)
class Context:
    """The tokens at the input: what GDPA may read besides X."""

    ad_BX: Tensor  # the ad's own tokens, flattened
    user_BND: Tensor | None  # user and request tokens, when towers must not see the ad


@dataclass(frozen=True, slots=True)
class KunlunOutput:
    """X of the last layer, the pooled towers, and X after the first interaction."""

    x_BND: Tensor
    h_BQD: Tensor
    shallow_BND: Tensor


def skips(layer: int, config: ModelConfig) -> tuple[bool, bool]:
    """(skip GDPA and pooling, skip self-attention) of a layer under CompSkip."""
    if not config.compskip:
        return False, False
    return layer % 2 == 1, layer % 2 == 0


class KunlunLayer(nn.Module):
    """One layer of Algorithm 1 over all towers."""

    def __init__(
        self, layer: int, events: tuple[EventType, ...], tokens: Tokens, config: ModelConfig
    ) -> None:
        super().__init__()
        skip_pool, skip_attention = skips(layer, config)
        self.pools, self.attends = not skip_pool, not skip_attention
        if self.pools and events:
            self.summarize = Summarize(tokens.context, config)
            self.feed_forward = nn.ModuleDict(
                {e.name: PersonalizedFeedForward(e, tokens.ad, config) for e in events}
            )
            self.pool = nn.ModuleDict({e.name: _pooling(e, config) for e in events})
        if self.attends:
            self.attention = nn.ModuleDict({e.name: SequenceAttention(e, config) for e in events})
        self.interact = GlobalInteraction(tokens.x, tokens.h, layer, config)

    def forward(
        self, x_BND: Tensor, towers: dict[str, Sequence], h: dict[str, Tensor], context: Context
    ) -> tuple[Tensor, dict[str, Sequence], dict[str, Tensor]]:
        """The next X, towers and H."""
        if self.pools and towers:
            read_BND = x_BND if context.user_BND is None else context.user_BND
            x_sum_BnD = self.summarize(read_BND)
            towers = {
                name: self.feed_forward[name](s, x_sum_BnD, context.ad_BX)
                for name, s in towers.items()
            }
            h = {name: self.pool[name](s) for name, s in towers.items()}
        x_BND = self.interact(x_BND, joined(h, x_BND))
        if self.attends:
            towers = {name: self.attention[name](s) for name, s in towers.items()}
        return x_BND, towers, h


class Kunlun(nn.Module):
    """The stack of layers and the last read-out."""

    def __init__(self, features: FeatureSet, config: ModelConfig) -> None:
        super().__init__()
        tokens = Tokens.of(features, config)
        self.layers = nn.ModuleList(
            KunlunLayer(i, features.events, tokens, config) for i in range(config.layers)
        )
        self.read_out = nn.ModuleDict()
        if not skips(config.layers - 1, config)[1]:
            self.read_out.update({e.name: PlainPooling(e, config.width) for e in features.events})

    def forward(self, x_BND: Tensor, towers: dict[str, Sequence], context: Context) -> KunlunOutput:
        """Run all layers."""
        h: dict[str, Tensor] = {}
        shallow_BND = x_BND
        for i, layer in enumerate(self.layers):
            x_BND, towers, h = layer(x_BND, towers, h, context)
            if i == 0:
                shallow_BND = x_BND
        for name, read in self.read_out.items():
            h[name] = read(towers[name])
        return KunlunOutput(x_BND, joined(h, x_BND), shallow_BND)


@dataclass(frozen=True, slots=True)
class Tokens:
    """Numbers of tokens: X, H, those that GDPA summarizes, and those of the ad."""

    x: int
    h: int
    context: int
    ad: int

    @staticmethod
    def of(features: FeatureSet, config: ModelConfig) -> Tokens:
        """The token counts of a model."""
        x = len(features.sparse) + bool(features.dense_columns)
        ad = sum(f.scope == "ad" for f in features.sparse)
        context = len(features.sparse) - ad if config.gdpa_context == "user" else x
        return Tokens(x, sum(e.tokens for e in features.events), context, ad)


def joined(h: dict[str, Tensor], x_BND: Tensor) -> Tensor:
    """H of all towers, [B, Q, D] (Q = 0 without towers)."""
    return torch.cat(list(h.values()), dim=1) if h else x_BND[:, :0]


def _pooling(event: EventType, config: ModelConfig) -> nn.Module:
    if config.pooling == "pma":
        return PlainPooling(event, config.width)
    return SeedPooling(event, config.seeds, config.sumkron_rank, config.width)
