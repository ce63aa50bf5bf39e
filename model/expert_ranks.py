"""Expert ranks: the ranks of a group share out the Wukong experts and compute them together.

Each rank of a group keeps some experts of every layer, and their optimizer state. It sends the
tokens that an expert reads to the rank that has it, computes its own experts on the rows of all
ranks of the group at once, and gets back what the others made of its rows: two all-to-alls a
layer, and two in the backward pass. The groups are DeepSpeed's: ranks that follow each other are
an expert group, and ranks with the same experts average their gradients.

Suffixes: B rows of this rank, J rows of the group's ranks, N tokens, D width.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from deepspeed.utils import groups
from torch import Tensor, nn
from torch.distributed.nn.functional import all_to_all_single

from model.config import require
from model.interaction import GlobalInteraction


class ExpertRanks:
    """The group of this rank, and which experts are whose: expert i belongs to rank i % size."""

    def __init__(self, size: int) -> None:
        self.size, self.name = size, f"ep_size_{size}"
        groups._create_expert_and_data_parallel(size)
        self.group: Any = groups._get_expert_parallel_group(self.name)
        self.replicas: Any = groups._get_expert_data_parallel_group(self.name)
        self.index = dist.get_rank(self.group)
        self.writes = dist.get_rank(self.replicas) == 0

    def of(self, rank: int, num_experts: int) -> range:
        """The experts of a rank of the group."""
        return range(rank, num_experts, self.size)

    def counts(self, num_rows: int) -> list[int]:
        """Rows of each rank of the group."""
        found = torch.zeros(self.size, dtype=torch.int64)
        found[self.index] = num_rows
        dist.all_reduce(found, group=self.group)
        return found.tolist()

    def exchange(self, values: Tensor, sent: list[int], received: list[int]) -> Tensor:
        """Stretches of `values` to the ranks of the group; what they sent here, in their order."""
        out = values.new_empty(sum(received))
        found: Tensor = all_to_all_single(out, values, received, sent, group=self.group)
        return found


class SpreadInteraction(nn.Module):
    """A `GlobalInteraction` of which this rank keeps its experts alone, under their names."""

    def __init__(self, whole: GlobalInteraction, ranks: ExpertRanks) -> None:
        super().__init__()
        self.ranks, self.places, self.outs = ranks, whole.places, whole.outs
        mine = ranks.of(ranks.index, len(whole.experts))
        self.experts = nn.ModuleDict({str(i): whole.experts[i] for i in mine})
        for parameter in self.experts.parameters():
            parameter.allreduce = False  # type: ignore[attr-defined]
            parameter.group_name = ranks.name  # type: ignore[attr-defined]

    def forward(self, x_BND: Tensor, h_BQD: Tensor) -> Tensor:
        """The next X, as `GlobalInteraction` makes it."""
        both_BND, ranks = torch.cat([x_BND, h_BQD], dim=1), self.ranks
        num_rows, width = len(both_BND), both_BND.shape[2]
        whose = [ranks.of(rank, len(self.places)) for rank in range(ranks.size)]
        rows = ranks.counts(num_rows)
        read = [[n for i in theirs for n in self.places[i]] for theirs in whose]
        tokens = torch.cat([both_BND[:, places].flatten() for places in read])
        per_row = width * len(read[ranks.index])
        joint = ranks.exchange(
            tokens, [num_rows * width * len(r) for r in read], [n * per_row for n in rows]
        )
        made_JND = self._compute(joint.view(sum(rows), -1, width), whose[ranks.index])
        made = [sum(self.outs[i] for i in theirs) for theirs in whose]
        per_row = width * made[ranks.index]
        back = ranks.exchange(
            made_JND.flatten(), [n * per_row for n in rows], [num_rows * width * m for m in made]
        )
        return self._in_order(back.split([num_rows * width * m for m in made]), whose, num_rows)

    def _compute(self, read_JND: Tensor, mine: range) -> Tensor:
        """This rank's experts, each on its tokens of all rows."""
        parts = read_JND.split([len(self.places[i]) for i in mine], dim=1)
        return torch.cat([self.experts[str(i)](x) for i, x in zip(mine, parts, strict=True)], 1)

    def _in_order(self, got: tuple[Tensor, ...], whose: list[range], num_rows: int) -> Tensor:
        """The outputs of all experts, those of a rank side by side, in the experts' order."""
        found: dict[int, Tensor] = {}
        for part, theirs in zip(got, whose, strict=True):
            sizes = [self.outs[i] for i in theirs]
            outs = part.view(num_rows, sum(sizes), -1).split(sizes, dim=1)
            found |= dict(zip(theirs, outs, strict=True))
        return torch.cat([found[i] for i in range(len(self.places))], dim=1)


def spread_experts(module: nn.Module, ranks: ExpertRanks) -> set[str]:
    """Give every interaction's experts to the ranks; names of the parameters this one keeps."""
    kept: set[str] = set()
    found = [(n, m) for n, m in module.named_modules() if isinstance(m, GlobalInteraction)]
    least = min((len(part.experts) for _, part in found), default=0)
    require(
        ranks.size <= least,
        "train.layout.expert",
        f"at most {least}, the Wukong experts of every layer",
        ranks.size,
        "raise model.wukong_experts",
    )
    for name, part in found:
        spread = SpreadInteraction(part, ranks)
        parent, _, attribute = name.rpartition(".")
        setattr(module.get_submodule(parent), attribute, spread)
        kept |= {f"{name}.{n}" for n, _ in spread.named_parameters()}
    return kept
