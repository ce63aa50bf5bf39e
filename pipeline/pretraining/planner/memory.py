"""What a rank holds, by part, in bytes."""

from __future__ import annotations

from pipeline.pretraining.planner.layouts import Plan
from pipeline.pretraining.planner.topology import Precision
from pipeline.pretraining.planner.workload import Workload

FLOAT, ID = 4, 8
BUCKET = 500_000_000  # elements that DeepSpeed reduces at once, unless told otherwise
ELEMENT_BYTES: dict[Precision, int] = {"float32": 4, "bfloat16": 2, "mxfp8": 2}


def memory(plan: Plan, work: Workload, rows: float, precision: Precision) -> dict[str, float]:
    """Bytes of a rank by part, with `rows` rows per step.

    Below float32 the weights that compute have a float32 copy beside AdamW's two moments. The
    averages of dense weights and tables are float32.
    """
    held = work.shared_parameters + work.expert_parameters / plan.expert
    width = ELEMENT_BYTES[precision]
    shard = plan.dense_shard
    states = 2 * FLOAT + (FLOAT if width < FLOAT else 0)
    of_weights = shard if plan.zero_stage == 3 else 1
    return {
        "parameters": width * held / of_weights,
        "gradients": width * held / (shard if plan.zero_stage >= 2 else 1),
        "optimizer": states * held / (shard if plan.zero_stage >= 1 else 1),
        "averages": FLOAT * held / of_weights,
        "activations": width * work.activations * rows,
        "tables": table_bytes(plan, work),
        "buffers": _buffers(plan, work, rows, held, width),
    }


def table_share(plan: Plan, work: Workload) -> float:
    """Share of all table rows on the fullest rank."""
    if plan.sharding == "table":
        return _fullest([float(r) for r in work.table_rows], plan.sparse_shard)
    return 1 / plan.sparse_shard


def lookup_share(plan: Plan, work: Workload) -> float:
    """Share of a group's lookups that the busiest rank answers."""
    if plan.sharding == "table":
        return _fullest(list(work.table_ids), plan.sparse_shard)
    return 1 / plan.sparse_shard


def table_bytes(plan: Plan, work: Workload) -> float:
    """Weights, their average and one Adagrad sum per row; whole gradients of replicated tables."""
    copies = 3 if plan.sharding == "data" else 2
    per_row = copies * FLOAT * work.embedding_dim + FLOAT
    return work.rows * per_row * table_share(plan, work)


def _buffers(plan: Plan, work: Workload, rows: float, held: float, width: int) -> float:
    """Looked-up embeddings and their gradients, ids, and what ZeRO gathers or reduces at once."""
    lookups = rows * work.ids * (2 * FLOAT * work.embedding_dim + ID)
    if plan.zero_stage == 0:
        return lookups
    whole = work.gathered * held if plan.zero_stage == 3 else min(held, BUCKET)
    return lookups + width * whole


def _fullest(loads: list[float], ranks: int) -> float:
    """Share of the heaviest of so many ranks when the heaviest item goes to the lightest rank."""
    filled = [0.0] * ranks
    for load in sorted(loads, reverse=True):
        filled[filled.index(min(filled))] += load
    return max(filled) / sum(loads)
