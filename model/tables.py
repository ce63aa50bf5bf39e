"""Embedding tables in training: a TorchRec collection, sharded by its planner, with its optimizer.

The optimizer works inside backward (fused row-wise Adagrad): no gradient of a whole table exists.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torchrec import EmbeddingCollection, EmbeddingConfig, KeyedJaggedTensor
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.shard import shard_modules
from torchrec.distributed.types import ShardingEnv, ShardingType
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

from model.embedding import PlainTables


class ShardedTables(nn.Module):
    """TorchRec tables that start from plain ones and answer the same call.

    All ids of a batch travel as one jagged row with a key per table: whose row an id belongs to
    does not matter here, and the exchange stays as small as it can be.
    """

    def __init__(
        self, plain: PlainTables, optimizer: type[torch.optim.Optimizer], learning_rate: float
    ) -> None:
        super().__init__()
        self.names = tuple(plain.weights)
        collection = EmbeddingCollection(tables=[_config(n, w) for n, w in plain.weights.items()])
        with torch.no_grad():
            for name, weight in plain.weights.items():
                collection.embeddings[name].weight.copy_(weight)
        apply_optimizer_in_backward(optimizer, collection.parameters(), {"lr": learning_rate})
        self.collection: Any = _shard(collection, self.names)
        self.optimizer: Any = self.collection.fused_optimizer

    def forward(self, ids: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Embeddings of each table's ids."""
        keyed = KeyedJaggedTensor(
            keys=list(self.names),
            values=torch.cat([ids[n] for n in self.names]),
            lengths=torch.tensor([ids[n].shape[0] for n in self.names]),
        )
        found = self.collection(keyed)
        return {name: found[name].values() for name in self.names}

    def set_learning_rate(self, rate: float) -> None:
        """The rate of the next backward."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()  # hands the rate to the fused kernels; updates nothing

    def weights(self) -> dict[str, Tensor]:
        """Table name -> weights of this rank (all rows, on one rank); writable."""
        state = self.collection.state_dict()
        return {name: _local(state[f"embeddings.{name}.weight"]) for name in self.names}

    def moments(self) -> dict[str, Tensor]:
        """Table name -> row-wise Adagrad sums of this rank; writable, empty with SGD."""
        found = {}
        for key, state in self.optimizer.state_dict()["state"].items():
            for moment in state.values():
                found[key.split(".")[1]] = _local(moment)
        return found


def _config(name: str, weight: Tensor) -> EmbeddingConfig:
    return EmbeddingConfig(
        name=name,
        embedding_dim=weight.shape[1],
        num_embeddings=weight.shape[0],
        feature_names=[name],
    )


def _shard(collection: EmbeddingCollection, names: tuple[str, ...]) -> nn.Module:
    """The collection under a planner's layout over the process group."""
    world = dist.get_world_size()
    logging.getLogger("torchrec").setLevel(logging.ERROR)  # it warns of every default
    kept = ParameterConstraints(
        sharding_types=[ShardingType.TABLE_WISE.value], compute_kernels=["fused"]
    )
    sharders = [EmbeddingCollectionSharder()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        planner = EmbeddingShardingPlanner(
            topology=Topology(world_size=world, compute_device="cpu", local_world_size=world),
            constraints=dict.fromkeys(names, kept),
        )
        plan = planner.collective_plan(collection, sharders, dist.group.WORLD)
        return shard_modules(
            collection,
            env=ShardingEnv.from_process_group(dist.group.WORLD),
            device=torch.device("cpu"),
            plan=plan,
            sharders=sharders,
        )


def _local(tensor: Any) -> Tensor:
    """This rank's part of a sharded tensor."""
    if not hasattr(tensor, "local_shards"):
        return tensor
    shards = tensor.local_shards()
    if len(shards) != 1 or shards[0].metadata.shard_sizes != list(tensor.metadata().size):
        raise ValueError(
            f"a table has {len(shards)} shards on this rank; "
            "only whole tables on one rank can be saved so far"
        )
    return shards[0].tensor
