"""How long collectives take on a topology: volume over bandwidth, and latency, level by level.

Every group of a degree is busy at the same time and has the same shape. A level's links carry what
crosses it: of the V bytes that a gathering brings to every rank, a domain with m of the n ranks
lacks V (1 - m / n) and fetches it once over the m links of its ranks. Levels work at the same time,
so the slowest decides; latencies add up.
"""

from __future__ import annotations

import math

from pipeline.pretraining.planner.topology import Group, Topology


def gather(topology: Topology, group: Group, num_bytes: float) -> float:
    """Seconds until every rank has all `num_bytes`, each starting with its part.

    The same for reduce-scatter, which runs backwards: a rank gives `num_bytes`, keeps a part.
    """
    slowest, latency = 0.0, 0.0
    for level, below, within in group.crossed(topology):
        lacking = num_bytes * (1 - below / group.size)
        slowest = max(slowest, lacking / (below * level.bytes_per_s))
        latency += math.ceil(math.log2(within / below)) * level.latency_s
    return slowest + latency


def all_reduce(topology: Topology, group: Group, num_bytes: float) -> float:
    """Seconds for the sum of `num_bytes` on every rank: reduce-scatter, then all-gather."""
    return 2 * gather(topology, group, num_bytes)


def all_to_all(topology: Topology, group: Group, num_bytes: float) -> float:
    """Seconds until every rank has sent `num_bytes`, an equal part to each rank of the group.

    A message to each peer is posted one after the other at a tenth of the link's latency, and the
    last one has to arrive.
    """
    slowest, latency = 0.0, 0.0
    for level, below, within in group.crossed(topology):
        beyond = num_bytes * (1 - below / group.size)
        slowest = max(slowest, beyond / level.bytes_per_s)
        latency += (1 + (within - below - 1) / 10) * level.latency_s
    return slowest + latency
