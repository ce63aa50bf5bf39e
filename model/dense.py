"""The dense part in training: a module in a DeepSpeed engine, and its state by parameter name.

What ZeRO shards lies flat and padded in buffers of its own. Here every parameter has a `Slot`:
which stretch of it this rank's optimizer steps, and where. Weights and optimizer state are read
and written through slots, so that no reader depends on the stage or on the number of ranks.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torchrec import EmbeddingCollection

from model.config import ConfigError
from model.embedding import DenseInputs, EventInputs, PlainTables
from model.engine_config import EngineConfig
from model.foundation import ModelOutput
from model.pieces import Place

if TYPE_CHECKING:
    from model.expert_ranks import ExpertRanks

WEIGHT, OPTIMIZER = "weight", "optimizer"


@dataclass(frozen=True, slots=True)
class Slot:
    """Elements [begin, begin + count) of a flat parameter, at `offset` in what is optimized."""

    optimized: Tensor
    offset: int
    begin: int
    count: int

    def of(self, flat: Tensor) -> Tensor:
        """The view of this slot in a tensor that is laid out as the optimized one is."""
        return flat.view(-1).narrow(0, self.offset, self.count)


class DensePart:
    """A dense module, its optimizer and its DeepSpeed engine."""

    def __init__(self, module: nn.Module, config: EngineConfig) -> None:
        self.module, self.stage = module, config.zero_stage
        self.shapes = {n: tuple(p.shape) for n, p in module.named_parameters()}
        self.expert_ranks: ExpertRanks | None = None
        self._experts = frozenset[str]()
        if config.layout.expert > 1:
            self.expert_ranks, self._experts = share_experts(module, config.layout.expert)
        self.optimizer = _optimizer(module, config)
        given = BareTensors(module) if self.stage == 3 else module
        self.engine = start_deepspeed(given, self.optimizer, config)
        if self.expert_ranks is not None:
            self.engine.has_moe_layers = True  # DeepSpeed looks for layers of its own class
            self.engine.expert_data_parallel_group = {self.expert_ranks.name: None}
        # a lone rank has nobody to reduce with, and DeepSpeed would copy all gradients all the same
        self.engine.enable_backward_allreduce &= dist.get_world_size() > 1
        self._clip_norm = config.clip_norm if self.stage == 0 else 0.0
        self._parameters = dict(module.named_parameters())
        slot_of = _SLOTS[self.stage]
        found = {n: slot_of(p, self.engine.optimizer) for n, p in self._parameters.items()}
        self.slots = {n: slot for n, slot in found.items() if slot is not None}
        self._first = dist.get_rank() == 0
        self.places = {n: self._place(n) for n in self.shapes}

    def forward(self, inputs: DenseInputs) -> ModelOutput:
        """The module's output, through DeepSpeed."""
        if self.stage < 3:
            output: ModelOutput = self.engine(inputs)
            return output
        return ModelOutput(*self.engine(*_bare(inputs)))

    def step(self) -> None:
        """Step the optimizer; without ZeRO gradients are whole, and all clipped in one call."""
        if self._clip_norm:
            self._clip()
        self.engine.step()

    def _clip(self) -> None:
        """By the norm of the whole gradient, that of experts on other ranks included."""
        given = {n: p.grad for n, p in self._parameters.items() if p.grad is not None}
        if self.expert_ranks is None:
            norm = nn.utils.get_total_norm(given.values(), foreach=True)
        else:
            parts = [
                nn.utils.get_total_norm(
                    [g for n, g in given.items() if (n in self._experts) == own]
                )
                for own in (True, False)
            ]
            of_experts = parts[0].square()
            dist.all_reduce(of_experts, group=self.expert_ranks.group)
            norm = (of_experts + parts[1].square()).sqrt()
        nn.utils.clip_grads_with_norm_(
            self._parameters.values(), self._clip_norm, norm, foreach=True
        )

    @property
    def num_parameters(self) -> int:
        """Parameters of the whole module."""
        return sum(math.prod(shape) for shape in self.shapes.values())

    def held(self) -> dict[str, Tensor]:
        """Name -> what this rank holds of the weights that forward uses: all, or a flat shard."""
        if self.stage < 3:
            return dict(self._parameters)
        return {n: p.ds_tensor for n, p in self._parameters.items()}  # type: ignore[attr-defined]

    def flat(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Tensors that are laid out as `held` are: flat and without padding; writable."""
        return {
            n: tensor.detach().view(-1).narrow(0, 0, self.places[n].shape[0])
            for n, tensor in tensors.items()
        }

    def state(self) -> dict[str, Tensor]:
        """Optimizer state of this rank by "optimizer.<kind>.<name>"; writable."""
        return {
            f"{OPTIMIZER}.{kind}.{name}": slot.of(value) if value.dim() else value
            for name, slot in self.slots.items()
            for kind, value in self.optimizer.state.get(slot.optimized, {}).items()
            if isinstance(value, Tensor)
        }

    def state_places(self) -> dict[str, Place]:
        """Where what `state` gives lies in the flat parameter; counts are alike on all ranks."""
        found = {}
        for key, value in self.state().items():
            name = key.split(".", 2)[2]
            slot, whole = self.slots[name], (math.prod(self.shapes[name]),)
            mine = self.stage > 0 or self._writes(name)
            if value.dim():
                found[key] = Place((slot.begin,), (slot.count,), whole, mine)
            else:
                found[key] = Place((), (), (), mine and not slot.begin)
        return found

    def expect(self, keys: set[str]) -> None:
        """Make room for the optimizer state that `keys` name, as a first step would."""
        for name, slot in self.slots.items():
            state = self.optimizer.state[slot.optimized]
            for kind in sorted(_kinds(keys, name)):
                if kind in state:
                    continue
                # AdamW counts its steps in a scalar; all else is shaped like the parameter
                like = torch.zeros(()) if kind == "step" else torch.zeros_like(slot.optimized)
                state[kind] = like.detach()

    def _place(self, name: str) -> Place:
        """Where what `flat` gives of a parameter lies in the flat one."""
        size, slot = math.prod(self.shapes[name]), self.slots.get(name)
        if name not in self._parameters:
            return Place((0,), (0,), (size,), mine=False)  # an expert of another rank
        if self.stage < 3:
            return Place((0,), (size,), (size,), mine=self._writes(name))
        if slot is None:
            return Place((0,), (0,), (size,), mine=False)
        return Place((slot.begin,), (slot.count,), (size,))

    def _writes(self, name: str) -> bool:
        """Whether this rank is the first of those that hold a whole parameter."""
        if self.expert_ranks is not None and name in self._experts:
            return self.expert_ranks.writes
        return self._first

    @torch.no_grad()
    def set_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Copy whole weights into the parameters named; others stay as they are."""
        own, places = self.flat(self.held()), self.places
        for name in weights.keys() & own.keys():
            own[name].copy_(places[name].within(weights[name].reshape(-1)))
        self.follow()

    @torch.no_grad()
    def follow(self) -> None:
        """Let the optimizer's own copies of the weights follow what was written into `held`."""
        if self.stage == 0:
            return
        held, places = self.flat(self.held()), self.places
        for name, slot in self.slots.items():
            begin = slot.begin - places[name].begin[0]
            slot.of(slot.optimized).copy_(held[name][begin : begin + slot.count])
        kept = self.engine.optimizer.persistent_parameters if self.stage == 3 else []
        if kept:  # small ones stay whole on every rank: made anew from the shards
            kept[0].partition(kept)
            kept[0].all_gather(kept)


class BareTensors(nn.Module):
    """A dense module that takes and gives tensors alone.

    ZeRO-3 gathers weights and reduces gradients in hooks, which find no tensors in dataclasses, and
    wait for the gradients of tensors that are arguments themselves. The module is one unit to them:
    its weights are gathered for forward and backward and are shards otherwise.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(
        self, events: tuple[tuple[str, int], ...], *tensors: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Logits, representation, reconstruction; `events`: names and blocks of each."""
        given = iter(tensors)
        embedded_BFD, dense_BC, surface_B = next(given), next(given), next(given)
        inputs = DenseInputs(
            embedded_BFD=embedded_BFD,
            dense_BC=dense_BC,
            events={name: _event(given, count) for name, count in events},
            surface_B=surface_B,
        )
        out: ModelOutput = self.module(inputs)
        return out.logits_BK, out.representation_Bd, out.reconstruction


def _event(given: Iterator[Tensor], num_blocks: int) -> EventInputs:
    lengths_B, gap_E, age_E = next(given), next(given), next(given)
    embedded = tuple(islice(given, num_blocks))
    return EventInputs(embedded=embedded, lengths_B=lengths_B, gap_E=gap_E, age_E=age_E)


def _bare(inputs: DenseInputs) -> tuple[Any, ...]:
    """The arguments of `BareTensors` for these inputs."""
    counts = tuple((name, len(e.embedded)) for name, e in inputs.events.items())
    of_events = [(e.lengths_B, e.gap_E, e.age_E, *e.embedded) for e in inputs.events.values()]
    flat = chain.from_iterable(of_events)
    return counts, inputs.embedded_BFD, inputs.dense_BC, inputs.surface_B, *flat


def share_experts(module: nn.Module, size: int) -> tuple[ExpertRanks, frozenset[str]]:
    """Share out the experts of a module; the group, and names of those that this rank keeps."""
    _import_deepspeed().init_distributed("gloo", verbose=False)
    from model.expert_ranks import ExpertRanks, spread_experts

    ranks = ExpertRanks(size)
    return ranks, frozenset(spread_experts(module, ranks))


def start_deepspeed(
    module: nn.Module, optimizer: torch.optim.Optimizer, config: EngineConfig
) -> Any:
    """A DeepSpeed engine around a dense module; a module with tables is refused."""
    for name, part in module.named_modules():
        tables = (EmbeddingCollection, PlainTables)
        if isinstance(part, tables) or hasattr(part, "fused_optimizer"):
            raise ConfigError(
                f"the module holds embedding tables ({name or 'itself'}): DeepSpeed would "
                "overwrite other ranks' rows; pass the dense part alone"
            )
    deepspeed = _import_deepspeed()
    # spares the compilation of a shared-memory all-reduce that training never calls
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed("gloo", verbose=False)
    if config.zero_stage == 3:
        deepspeed.utils.set_z3_leaf_module(module, True)
    engine, *_ = deepspeed.initialize(
        model=module, optimizer=optimizer, config=deepspeed_config(config), dist_init_required=False
    )
    return engine


def deepspeed_config(config: EngineConfig) -> dict[str, Any]:
    """DeepSpeed's own settings."""
    return {
        "train_micro_batch_size_per_gpu": max(1, config.batch_size // config.ranks),
        "gradient_accumulation_steps": config.gradient_accumulation,
        "gradient_clipping": config.clip_norm if config.zero_stage else 0.0,
        "zero_optimization": {"stage": config.zero_stage},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 10**9,
    }


def _import_deepspeed() -> Any:
    """DeepSpeed without MLflow, which its unused autotuner loads for seconds when it finds it."""
    hidden = "mlflow" not in sys.modules
    if hidden:
        sys.modules["mlflow"] = None  # type: ignore[assignment]
    try:
        import deepspeed
    finally:
        if hidden:
            del sys.modules["mlflow"]
    return deepspeed


def _optimizer(module: nn.Module, config: EngineConfig) -> torch.optim.Optimizer:
    if config.optimizer == "sgd":
        return torch.optim.SGD(module.parameters(), lr=config.dense_lr)
    return torch.optim.AdamW(
        module.parameters(), lr=config.dense_lr, weight_decay=config.weight_decay, fused=True
    )


def _kinds(keys: set[str], name: str) -> set[str]:
    """Kinds of optimizer state that `keys` name of a parameter."""
    found = (key.split(".", 2) for key in keys if key.startswith(f"{OPTIMIZER}."))
    return {kind for _, kind, of in found if of == name}


def _whole_slot(parameter: Any, optimizer: Any) -> Slot:
    return Slot(parameter, 0, 0, parameter.numel())


def _fragment_slot(parameter: Any, optimizer: Any) -> Slot | None:
    """Stages 1 and 2: the stretch that falls into this rank's partition of all parameters."""
    mapping = parameter._hp_mapping
    if mapping is None:
        return None
    mine, whole = mapping.hp_fragment_address, mapping.lp_fragment_address
    flat = optimizer.single_partition_of_fp32_groups[mapping.param_group_index]
    return Slot(flat, mine.start, whole.start, whole.numel)


def _shard_slot(parameter: Any, optimizer: Any) -> Slot | None:
    """Stage 3: this rank's shard of each parameter; the last ones are padded."""
    group, offset, size = optimizer.grad_position[optimizer.get_param_id(parameter)]
    begin = dist.get_rank() * size
    count = min(size, parameter.ds_numel - begin)
    if count <= 0:
        return None
    return Slot(optimizer.fp32_partitioned_groups_flat[group], offset, begin, count)


_SLOTS: dict[int, Callable[[Any, Any], Slot | None]] = {
    0: _whole_slot,
    1: _fragment_slot,
    2: _fragment_slot,
    3: _shard_slot,
}
