"""How a model is spread over ranks, in five degrees: plain data, standard library only.

Dense: shard x replica x expert = ranks. Tables: shard x replica = ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from model.config import require

Sharding = Literal["table", "row", "column", "data"]
STAGES = (0, 1, 2, 3)


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The five degrees, 0 standing for what follows from the ranks, and how tables are cut.

    `dense_shard`: ranks that share one copy of what ZeRO shards; `dense_replica`: such groups.
    `expert`: ranks that share the experts of a layer out among them (1: each has all).
    `sparse_shard`: ranks that share one copy of the tables; `sparse_replica`: such groups.
    `sharding`: whole tables, blocks of rows or of columns to a rank, or (data) every table on
    every rank.
    """

    dense_shard: int = 0
    dense_replica: int = 0
    expert: int = 1
    sparse_shard: int = 0
    sparse_replica: int = 0
    sharding: Sharding = "table"

    def check(self, ranks: int, zero_stage: int, *, row_sums: bool = True) -> None:
        """`ConfigError` unless the degrees fit the ranks and are built.

        `row_sums`: the tables' optimizer keeps one sum for each row.
        """
        require(ranks >= 1, "train.ranks", "at least 1", ranks, "use 1")
        known = zero_stage in STAGES
        require(known, "train.zero_stage", "0, 1, 2 or 3", zero_stage, "use 0 to shard nothing")
        require(
            ranks > 1 or zero_stage == 0,
            "train.zero_stage",
            "0 on one rank",
            zero_stage,
            "there is nothing to shard",
        )
        require(
            not (row_sums and self.sharding == "column"),
            "train.layout.sharding",
            "table, row or data",
            self.sharding,
            "row-wise Adagrad has one sum per row, which blocks of columns cannot share",
        )
        shard, expert = (ranks, 1) if zero_stage else (1, max(1, self.expert))
        dense = {
            "dense_shard": shard,
            "dense_replica": max(1, ranks // shard // expert),
            "expert": expert,
        }
        split = 1 if self.sharding == "data" else ranks
        sparse = {"sparse_shard": split, "sparse_replica": ranks // split}
        for built in (dense, sparse):
            self._check(built, ranks)

    def _check(self, built: dict[str, int], ranks: int) -> None:
        """The degrees of one part: their product first, then whether they can be had."""
        asked = {name: getattr(self, name) or degree for name, degree in built.items()}
        product = 1
        for degree in asked.values():
            product *= degree
        names = " x ".join(built)
        fit = f"train.ranks, which is {ranks}"
        shown = " x ".join(map(str, asked.values()))
        require(product == ranks, f"train.layout.{names}", fit, shown, "use 0 for what follows")
        for name, degree in asked.items():
            require(
                degree == built[name],
                f"train.layout.{name}",
                f"{built[name]} at this stage and sharding",
                degree,
                "groups of shards, replicas of groups, and expert ranks under ZeRO are not built "
                "yet; use 0 for what follows",
            )
