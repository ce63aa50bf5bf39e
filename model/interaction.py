"""Global interaction: a mixture of Wukong layers over all tokens (arXiv 2403.02545, 2602.10016).

Suffixes: B rows, N tokens in, D width, r rank of the factorization machine.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from model.config import ModelConfig
from model.precision import Linear


def along_tokens(weight_MN: Tensor, x_BND: Tensor) -> Tensor:
    """[B, M, D]: a linear along the token axis.

    A small product per row with a weight that is not copied; `matmul` would transpose X in memory.
    """
    return torch.bmm(weight_MN.expand(x_BND.shape[0], -1, -1), x_BND)


class TokenLinear(nn.Module):
    """Linear along the token axis, [B, N, D] -> [B, M, D]; `identity` starts as a copy."""

    def __init__(self, num_in: int, num_out: int, *, identity: bool = False) -> None:
        super().__init__()
        weight_MN = torch.randn(num_out, num_in) * num_in**-0.5
        self.weight_MN = nn.Parameter(torch.eye(num_out, num_in) if identity else weight_MN)

    def forward(self, x_BND: Tensor) -> Tensor:
        """[B, M, D]."""
        return along_tokens(self.weight_MN, x_BND)


class FactorizationBlock(nn.Module):
    """MLP(LN(flatten(X X^T Y))), computed as X (X^T Y), with attentive Y [N, r]."""

    def __init__(self, num_in: int, num_out: int, config: ModelConfig) -> None:
        super().__init__()
        rank, width = config.fm_rank, config.width
        self.rank, self.width = rank, width
        self.compress = TokenLinear(num_in, config.summary_tokens)
        self.attend = Linear(config.summary_tokens * width, num_in * rank)
        self.norm = nn.LayerNorm(num_in * rank)
        self.mlp = nn.Sequential(
            Linear(num_in * rank, config.mlp_width),
            nn.SiLU(),
            Linear(config.mlp_width, num_out * width),
        )
        nn.init.normal_(self.attend.bias, std=num_in**-0.5)

    def forward(self, x_BND: Tensor, compressed_BnD: Tensor) -> Tensor:
        """[B, num_out, D]; Y is made from what `compress` makes of X."""
        y_BNr = self.attend(compressed_BnD.flatten(1)).view(*x_BND.shape[:2], self.rank)
        pairs_BNr = torch.matmul(x_BND, torch.matmul(x_BND.transpose(1, 2), y_BNr))
        return self.mlp(self.norm(pairs_BNr.flatten(1))).view(x_BND.shape[0], -1, self.width)


class WukongLayer(nn.Module):
    """LN(concat(FMB, LCB) + compressed X): `num_in` tokens to `num_out`."""

    def __init__(self, num_in: int, num_out: int, config: ModelConfig) -> None:
        super().__init__()
        num_pairs = max(1, num_out // 2)
        self.pairs = FactorizationBlock(num_in, num_pairs, config)
        self.linear = TokenLinear(num_in, num_out - num_pairs) if num_out > num_pairs else None
        # as identity the residual path starts as a plain copy of the first tokens
        self.residual = TokenLinear(num_in, num_out, identity=config.residual_init == "identity")
        self.norm = nn.LayerNorm(config.width)

    def forward(self, x_BND: Tensor) -> Tensor:
        """[B, num_out, D]."""
        # all that is linear along the tokens of X in one product
        weights: list[Tensor] = [self.pairs.compress.weight_MN, self.residual.weight_MN]
        if self.linear is not None:
            weights.append(self.linear.weight_MN)
        mixed_BMD = along_tokens(torch.cat(weights), x_BND)
        compressed_BnD, residual_BMD, *linear = mixed_BMD.split([len(w) for w in weights], dim=1)
        pairs_BMD = self.pairs(x_BND, compressed_BnD)
        return self.norm(torch.cat([pairs_BMD, *linear], dim=1) + residual_BMD)


class GlobalInteraction(nn.Module):
    """[X | H] over M Wukong experts, each on its own tokens; no router, outputs concatenated.

    `partition`: runs of tokens (contiguous), or every M-th token (interleaved). Alternating begins
    interleaved, so that X meets H from the first layer on, and partitions mix.
    """

    def __init__(self, num_x: int, num_h: int, layer: int, config: ModelConfig) -> None:
        super().__init__()
        total, experts = num_x + num_h, min(config.wukong_experts, num_x)
        kinds = ("interleaved", "contiguous")
        kind = kinds[layer % 2] if config.partition == "alternate" else config.partition
        pieces = torch.arange(total)
        parts = (
            pieces.tensor_split(experts)
            if kind == "contiguous"
            else [pieces[i::experts] for i in range(experts)]
        )
        self.places = [p.tolist() for p in parts]
        self.outs = [len(p) for p in torch.arange(num_x).tensor_split(experts)]
        self.experts = nn.ModuleList(
            WukongLayer(len(p), out, config) for p, out in zip(self.places, self.outs, strict=True)
        )

    def forward(self, x_BND: Tensor, h_BQD: Tensor) -> Tensor:
        """The next X, with as many tokens as X."""
        both_BND = torch.cat([x_BND, h_BQD], dim=1)
        if len(self.experts) == 1:
            return self.experts[0](both_BND)
        parts = [
            e(both_BND[:, places]) for e, places in zip(self.experts, self.places, strict=True)
        ]
        return torch.cat(parts, dim=1)
