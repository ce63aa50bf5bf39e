"""Embedding tables in training: a TorchRec collection, sharded by its planner, with its optimizer.

The optimizer works inside backward (fused row-wise Adagrad): no gradient of a whole table exists.
Tables that every rank holds (sharding "data") are the exception.
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
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

from model.config import require
from model.embedding import PlainTables
from model.layout import Sharding
from model.pieces import Place

FUSED_EPS = 1e-8  # of the fused kernel, whatever RowWiseAdagrad itself would take
_TORCHREC = {
    "table": ShardingType.TABLE_WISE,
    "row": ShardingType.ROW_WISE,
    "column": ShardingType.COLUMN_WISE,
}


class ShardedTables(nn.Module):
    """TorchRec tables that start from plain ones and answer the same call.

    All ids of a batch travel as one jagged row with a key per table: whose row an id belongs to
    does not matter here, and the exchange stays as small as it can be.
    """

    def __init__(
        self,
        plain: PlainTables,
        optimizer: type[torch.optim.Optimizer],
        learning_rate: float,
        sharding: Sharding = "table",
    ) -> None:
        super().__init__()
        self.names = tuple(plain.weights)
        collection = EmbeddingCollection(tables=[_config(n, w) for n, w in plain.weights.items()])
        with torch.no_grad():
            for name, weight in plain.weights.items():
                collection.embeddings[name].weight.copy_(weight)
        apply_optimizer_in_backward(optimizer, collection.parameters(), {"lr": learning_rate})
        self.collection: Any = _shard(collection, dict(plain.weights.items()), sharding)
        self.optimizer: Any = self.collection.fused_optimizer
        self.shapes = {name: tuple(weight.shape) for name, weight in plain.weights.items()}
        held = self._held()
        self.places = {name: self._place(name, held.get(name)) for name in self.names}
        with torch.no_grad():
            for name, weight in self.weights().items():
                weight.copy_(self.places[name].within(plain.weights[name]))

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

    def step(self) -> None:
        """Nothing is left to do: tables were updated inside backward."""

    def weights(self) -> dict[str, Tensor]:
        """Table name -> this rank's piece (all rows, on one rank); writable."""
        return {name: tensor for name, (tensor, _) in self._held().items()}

    def moments(self) -> dict[str, Tensor]:
        """Table name -> row-wise Adagrad sums of this rank's rows; writable, empty with SGD."""
        found: dict[str, Tensor] = {}
        for key, state in self.optimizer.state_dict()["state"].items():
            for moment in state.values():
                shards = [t.view(-1) for t, _ in _shards(moment)]
                found |= {key.split(".")[1]: shard for shard in shards}
        return found

    def moment_places(self) -> dict[str, Place]:
        """Where the sums of this rank's rows lie in those of the whole table."""
        return _row_places(self.places)

    def _held(self) -> dict[str, tuple[Tensor, tuple[int, ...]]]:
        """Pieces of this rank and where they begin."""
        state = self.collection.state_dict()
        found = {name: _shards(state[f"embeddings.{name}.weight"]) for name in self.names}
        return {name: shards[0] for name, shards in found.items() if shards}

    def _place(self, name: str, held: tuple[Tensor, tuple[int, ...]] | None) -> Place:
        whole = self.shapes[name]
        if held is None:
            return Place((0, 0), (0, 0), whole, mine=False)
        piece, begin = held
        return Place(begin, tuple(piece.shape), whole)


class ReplicatedTables(nn.Module):
    """Tables that every rank holds, answering to the same calls as `ShardedTables`.

    TorchRec's own pools a sequence's ids into one on a CPU. Gradients of whole tables are averaged
    over the ranks, which suits small ones.
    """

    def __init__(
        self, plain: PlainTables, optimizer: type[torch.optim.Optimizer], learning_rate: float
    ) -> None:
        super().__init__()
        self.plain = plain
        settings: dict[str, Any] = {"eps": FUSED_EPS} if optimizer is RowWiseAdagrad else {}
        self.optimizer: Any = optimizer(  # type: ignore[call-arg]
            plain.parameters(), lr=learning_rate, **settings
        )
        self.shapes = {name: tuple(weight.shape) for name, weight in plain.weights.items()}
        mine = dist.get_rank() == 0
        self.places = {n: Place.all_of(w, mine=mine) for n, w in plain.weights.items()}

    def forward(self, ids: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Embeddings of each table's ids."""
        found: dict[str, Tensor] = self.plain(ids)
        return found

    def set_learning_rate(self, rate: float) -> None:
        """The rate of the next step."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate

    def step(self) -> None:
        """Average the gradients of all ranks and apply them."""
        for weight in self.plain.parameters():
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
            dist.all_reduce(weight.grad)
            weight.grad /= dist.get_world_size()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def weights(self) -> dict[str, Tensor]:
        """Table name -> weights; writable."""
        return {name: weight.detach() for name, weight in self.plain.weights.items()}

    def moments(self) -> dict[str, Tensor]:
        """Table name -> row-wise Adagrad sums; writable, empty with SGD."""
        states = {n: self.optimizer.state[w] for n, w in self.plain.weights.items()}
        return {n: state["sum"].view(-1) for n, state in states.items() if "sum" in state}

    def moment_places(self) -> dict[str, Place]:
        """Where the sums lie in those of the whole table."""
        return _row_places(self.places)


def trained_tables(
    plain: PlainTables,
    optimizer: type[torch.optim.Optimizer],
    learning_rate: float,
    sharding: Sharding,
) -> ShardedTables | ReplicatedTables:
    """Tables in training that start from plain ones."""
    if sharding == "data":
        return ReplicatedTables(plain, optimizer, learning_rate)
    return ShardedTables(plain, optimizer, learning_rate, sharding)


def _row_places(places: Mapping[str, Place]) -> dict[str, Place]:
    """The places of one value per row."""
    found = places.items()
    return {n: Place(p.begin[:1], p.shape[:1], p.whole[:1], p.mine) for n, p in found}


def _config(name: str, weight: Tensor) -> EmbeddingConfig:
    return EmbeddingConfig(
        name=name,
        embedding_dim=weight.shape[1],
        num_embeddings=weight.shape[0],
        feature_names=[name],
    )


def _shard(
    collection: EmbeddingCollection, weights: Mapping[str, Tensor], sharding: Sharding
) -> nn.Module:
    """The collection under a planner's layout over the process group."""
    world = dist.get_world_size()
    logging.getLogger("torchrec").setLevel(logging.ERROR)  # it warns of every default
    sharders = [EmbeddingCollectionSharder()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        planner = EmbeddingShardingPlanner(
            topology=Topology(world_size=world, compute_device="cpu", local_world_size=world),
            constraints={n: _kept(w, sharding, world) for n, w in weights.items()},
        )
        plan = planner.collective_plan(collection, sharders, dist.group.WORLD)
        return shard_modules(
            collection,
            env=ShardingEnv.from_process_group(dist.group.WORLD),
            device=torch.device("cpu"),
            plan=plan,
            sharders=sharders,
        )


def _kept(weight: Tensor, sharding: Sharding, world: int) -> ParameterConstraints:
    """What the planner may do with a table."""
    width = weight.shape[1]
    if sharding == "column":
        require(
            width % (4 * world) == 0,
            "model.embedding_dim",
            f"a multiple of 4 x {world} ranks for blocks of columns",
            width,
            "widen it or use train.layout.sharding row",
        )
    return ParameterConstraints(
        sharding_types=[_TORCHREC[sharding].value],
        compute_kernels=["fused"],
        min_partition=width // world if sharding == "column" else None,
    )


def _shards(tensor: Any) -> list[tuple[Tensor, tuple[int, ...]]]:
    """This rank's parts of a tensor, sharded or not, and where each begins."""
    if not hasattr(tensor, "local_shards"):
        return [(tensor, (0,) * tensor.dim())]
    shards = tensor.local_shards()
    return [(s.tensor, tuple(s.metadata.shard_offsets)) for s in shards]
