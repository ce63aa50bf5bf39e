"""How long a step takes under a layout, term by term (docs/planner.md has the formulas).

The model is that of the engine (model/parallel.py): lookups are exchanged, the dense part runs
forward and backward, gradients are reduced, the optimizer steps, averages follow.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from pipeline.pretraining.planner.collectives import all_reduce, all_to_all, gather
from pipeline.pretraining.planner.layouts import Plan
from pipeline.pretraining.planner.memory import (
    ELEMENT_BYTES,
    FLOAT,
    ID,
    lookup_share,
    table_share,
)
from pipeline.pretraining.planner.topology import GIGA, Group, Precision, Topology
from pipeline.pretraining.planner.workload import TRAINING, Workload

ADAMW_BYTES = 28  # weight, gradient and two moments read, three of them written
CLIP_BYTES = 12  # the gradient's norm, and its scaling
# what DeepSpeed 0.19 moves besides: gradients into a bucket, flat, divided; of a shard of stages 1
# and up: two copies, norm, clipping, flat once more, new weights back through a buffer
GRADIENT_COPIES, SHARD_BYTES = 6, 52
AVERAGE_BYTES = 12  # average and weight read, average written
TABLE_PASSES = 6  # rows read, gathered; gradients read; rows read and written, sums
TABLE_STRIDE = 8  # steps between updates of the tables' average, as in the engine
SYNC_STEPS = 8  # steps between two exchanges of replicated shards of tables
SMALL_SUMS = 2  # of the rows' weights, and of the gradient's norm


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTime:
    """Seconds of a step by what they go to; traffic counts as far as it is waited for."""

    compute: float
    imbalance: float
    overhead: float
    optimizer: float
    lookup: float
    sparse_exchange: float
    sparse_replicas: float
    experts: float
    weights: float
    gradients: float
    small_sums: float

    @property
    def total(self) -> float:
        """Seconds of the whole step."""
        return sum(asdict(self).values())

    @property
    def limit(self) -> str:
        """What costs most besides computing."""
        terms = {name: value for name, value in asdict(self).items() if name != "compute"}
        return max(terms, key=lambda name: terms[name])


def step_time(
    plan: Plan, work: Workload, topology: Topology, batch: int, precision: Precision
) -> StepTime:
    """What a step of `batch` rows over all ranks takes."""
    rows = batch / plan.world
    device, slow = topology.device, topology.slowdown(plan.world)
    flops = TRAINING * work.flops * rows
    compute = slow * flops / (topology.peak(precision) * device.local_mfu)
    overhead = device.step_overhead_ms + work.layers * device.layer_overhead_ms
    width = ELEMENT_BYTES[precision]
    memory_rate = device.memory_gb_per_s * GIGA / slow
    weights, gradients = _dense_traffic(plan, work, topology, compute, width)
    return StepTime(
        compute=compute,
        imbalance=compute * heaviest(work.cost_cv, rows, plan.world),
        overhead=slow * overhead / 1e3,
        optimizer=_optimizer(plan, work) / memory_rate,
        lookup=_lookup(plan, work, rows) / memory_rate,
        sparse_exchange=_sparse(plan, work, topology, rows, compute),
        sparse_replicas=_table_replicas(plan, work, topology),
        experts=_experts(plan, work, topology, rows, width),
        weights=weights,
        gradients=gradients,
        small_sums=SMALL_SUMS * all_reduce(topology, Group(plan.world), FLOAT),
    )


def heaviest(cost_cv: float, rows: float, world: int) -> float:
    """How far the heaviest of `world` batches is above their mean, as a share of it.

    Costs of a batch of independent rows differ by cv / sqrt(rows); the largest of n normal draws
    is about sqrt(2 ln n) of their deviations above the mean.
    """
    return cost_cv / math.sqrt(rows) * math.sqrt(2 * math.log(world))


def mfu(
    step: StepTime,
    work: Workload,
    topology: Topology,
    batch: int,
    world: int,
    precision: Precision,
) -> float:
    """Model FLOPs of a step over what the devices' peak would have allowed in its time."""
    return TRAINING * work.flops * batch / (step.total * world * topology.peak(precision))


def _dense_traffic(
    plan: Plan, work: Workload, topology: Topology, compute: float, width: int
) -> tuple[float, float]:
    """Seconds waited for weights and for gradients.

    What lies outside of the experts is summed over the ranks of an expert group too.
    """
    held = width * (work.shared_parameters + work.expert_parameters / plan.expert)
    shared, overlap = width * work.shared_parameters, topology.overlap
    gradients = gather(topology, plan.shards, held)
    if plan.zero_stage in (1, 2):  # DeepSpeed sums whole buckets on every rank
        gradients *= 2
    if plan.world > 1:
        memory_rate = topology.device.memory_gb_per_s * GIGA / topology.slowdown(plan.world)
        gradients += GRADIENT_COPIES * held / memory_rate
    gradients += all_reduce(topology, plan.replicas, held / plan.dense_shard)
    gradients += all_reduce(topology, plan.experts, shared / plan.dense_shard)
    weights = gather(topology, plan.shards, held)  # after the step
    if plan.zero_stage == 3:  # for forward, and again for backward; what comes first hides nowhere
        weights = _beyond(2 * weights, overlap.weights * compute * (1 - work.gathered))
    return weights, _beyond(gradients, overlap.gradients * compute * 2 / 3)


def _sparse(plan: Plan, work: Workload, topology: Topology, rows: float, compute: float) -> float:
    """Seconds waited for ids, for their embeddings, and for the gradients of these."""
    group, ids = plan.table_shards, rows * work.ids
    busiest = lookup_share(plan, work) * plan.sparse_shard
    embeddings = FLOAT * work.embedding_dim * ids * busiest
    seconds = all_to_all(topology, group, ID * ids) + 2 * all_to_all(topology, group, embeddings)
    return _beyond(seconds, topology.overlap.sparse * compute)


def _table_replicas(plan: Plan, work: Workload, topology: Topology) -> float:
    """Seconds to keep copies of tables alike.

    Whole gradients are summed where every rank has all tables; else rows and their sums are
    averaged over the replicas every few steps.
    """
    if plan.sharding == "data":
        whole = FLOAT * work.rows * work.embedding_dim
        return all_reduce(topology, plan.table_replicas, whole)
    shard = FLOAT * work.rows * (work.embedding_dim + 1) * table_share(plan, work)
    return all_reduce(topology, plan.table_replicas, shard) / SYNC_STEPS


def _experts(plan: Plan, work: Workload, topology: Topology, rows: float, width: int) -> float:
    """Seconds to gather what experts read and scatter what they write, forward and backward."""
    joint = width * rows * plan.expert / work.layers
    read = gather(topology, plan.experts, joint * work.expert_in)
    written = gather(topology, plan.experts, joint * work.expert_out)
    return 2 * work.layers * (read + written)


def _optimizer(plan: Plan, work: Workload) -> float:
    """Bytes that AdamW, ZeRO's own copies and the average of the dense weights move."""
    held = work.shared_parameters + work.expert_parameters / plan.expert
    averaged = held / plan.dense_shard if plan.zero_stage == 3 else held
    stepped = ADAMW_BYTES + (SHARD_BYTES if plan.zero_stage else CLIP_BYTES)
    return stepped * held / plan.dense_shard + AVERAGE_BYTES * averaged


def _lookup(plan: Plan, work: Workload, rows: float) -> float:
    """Bytes that lookups, the tables' optimizer and their average move on the busiest rank."""
    busiest = lookup_share(plan, work) * plan.sparse_shard
    looked_up = TABLE_PASSES * FLOAT * work.embedding_dim * rows * work.ids * busiest
    held = work.rows * work.embedding_dim * table_share(plan, work)
    stepped = ADAMW_BYTES * held if plan.sharding == "data" else 0.0
    return looked_up + stepped + AVERAGE_BYTES * held / TABLE_STRIDE


def _beyond(seconds: float, hidden: float) -> float:
    return max(0.0, seconds - hidden)
