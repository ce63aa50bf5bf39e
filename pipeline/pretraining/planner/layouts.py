"""All ways to lay a training over a number of ranks, and why some of them cannot be.

Dense: shard x replica x expert = ranks. Tables: shard x replica = ranks. Neighbouring ranks share
experts, then shards, then come replicas; for tables: shards, then replicas. So whatever is
exchanged most often stays in a host, and what is exchanged once a step goes far.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from model.layout import Layout, Sharding
from pipeline.pretraining.planner.topology import Group, Topology
from pipeline.pretraining.planner.workload import Workload
from pipeline.run.errors import ConfigError

SHARDINGS: tuple[Sharding, ...] = ("table", "row", "column")


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The five degrees, the ZeRO stage and how tables are cut, named as in `train.*`."""

    dense_shard: int
    dense_replica: int
    expert: int
    sparse_shard: int
    sparse_replica: int
    zero_stage: int
    sharding: Sharding

    @property
    def world(self) -> int:
        """Ranks."""
        return self.dense_shard * self.dense_replica * self.expert

    @property
    def experts(self) -> Group:
        """Ranks that share the experts."""
        return Group(self.expert)

    @property
    def shards(self) -> Group:
        """Ranks that share one copy of what ZeRO shards."""
        return Group(self.dense_shard, self.expert)

    @property
    def replicas(self) -> Group:
        """Ranks that hold the same shard."""
        return Group(self.dense_replica, self.expert * self.dense_shard)

    @property
    def table_shards(self) -> Group:
        """Ranks that share one copy of the tables."""
        return Group(self.sparse_shard)

    @property
    def table_replicas(self) -> Group:
        """Ranks that hold the same rows."""
        return Group(self.sparse_replica, self.sparse_shard)

    @property
    def groups(self) -> dict[str, Group]:
        """All groups by the degree that they belong to."""
        return {
            "expert": self.experts,
            "dense_shard": self.shards,
            "dense_replica": self.replicas,
            "sparse_shard": self.table_shards,
            "sparse_replica": self.table_replicas,
        }

    @property
    def layout(self) -> Layout:
        """The degrees as training has them."""
        return Layout(
            dense_shard=self.dense_shard,
            dense_replica=self.dense_replica,
            expert=self.expert,
            sparse_shard=self.sparse_shard,
            sparse_replica=self.sparse_replica,
            sharding=self.sharding,
        )

    def overrides(self, batch: int) -> dict[str, Any]:
        """The `train.*` settings of this layout."""
        return {
            "train.ranks": self.world,
            "train.batch_size": batch,
            "train.zero_stage": self.zero_stage,
            **{f"train.layout.{n}": value for n, value in asdict(self.layout).items()},
        }


def layouts(world: int) -> Iterator[Plan]:
    """Every layout of so many ranks; column-wise tables are among them, to be refused."""
    for expert in _divisors(world):
        for shard in _divisors(world // expert):
            for table_shard in _divisors(world):
                for stage in (0,) if shard == 1 else (1, 2, 3):
                    for sharding in _shardings(table_shard, world):
                        yield Plan(
                            dense_shard=shard,
                            dense_replica=world // expert // shard,
                            expert=expert,
                            sparse_shard=table_shard,
                            sparse_replica=world // table_shard,
                            zero_stage=stage,
                            sharding=sharding,
                        )


def refusal(plan: Plan, work: Workload, topology: Topology, batch: int) -> str:
    """Why a layout cannot be, whatever it costs; empty where it can."""
    host = topology.host.devices
    if work.experts % plan.expert:
        return f"expert degree does not divide the {work.experts} Wukong experts"
    if plan.expert > host:
        return f"expert group larger than a host of {host}"
    if plan.sharding == "column":
        return "column-wise tables: row-wise Adagrad has one sum per row"
    if plan.sharding == "table" and plan.sparse_shard > len(work.table_rows):
        return f"more table shards than the {len(work.table_rows)} tables"
    if batch < plan.world:
        return f"batch of {batch} gives some rank no row"
    if plan.world > host:
        inner = (plan.shards, plan.table_shards)
        if not all(group.even(host) for group in inner if group.size > 1):
            return f"a group that is neither part of a host of {host} nor whole hosts"
    return ""


def unbuilt(plan: Plan) -> str:
    """Why the training engine of today refuses a layout; empty where it runs it."""
    try:
        plan.layout.check(plan.world, plan.zero_stage)
    except ConfigError as error:
        return f"not built: {str(error).split(' must be ')[0]}"
    return ""


def _shardings(table_shard: int, world: int) -> tuple[Sharding, ...]:
    """How tables may be cut over so many shards; copies on several ranks are TorchRec's "data"."""
    if table_shard > 1:
        return SHARDINGS
    return ("table",) if world == 1 else ("data",)


def _divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]
