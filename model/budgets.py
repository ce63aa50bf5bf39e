"""How much training keeps of its activations, by region: plain data, standard library only."""

from __future__ import annotations

from dataclasses import dataclass, fields

from model.config import require


@dataclass(frozen=True, kw_only=True)
class Keep:
    """Budgets of the regions: the share of modules, 0 to 1, that keep their activations.

    `attention`: all that works on events (GDPA, pooling, self-attention); `interaction`: the
    Wukong experts of each layer; `heads`: towers and gates of the objectives.
    """

    attention: float = 1.0
    interaction: float = 1.0
    heads: float = 1.0

    def __post_init__(self) -> None:
        for region in fields(self):
            share = getattr(self, region.name)
            name, remedy = f"train.keep.{region.name}", "use 1.0 to keep all activations"
            require(0 <= share <= 1, name, "in [0, 1]", share, remedy)
