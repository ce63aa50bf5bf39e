"""The best layouts of a workload on a topology, and why the others were refused."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from pipeline.pretraining.planner.cost import StepTime, mfu, step_time
from pipeline.pretraining.planner.layouts import Plan, layouts, refusal, unbuilt
from pipeline.pretraining.planner.memory import memory
from pipeline.pretraining.planner.topology import GIGA, Precision, Topology
from pipeline.pretraining.planner.workload import Workload
from pipeline.run.errors import ConfigError, require


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A layout with what is predicted of it: seconds and bytes by part, and MFU."""

    plan: Plan
    step: StepTime
    memory: dict[str, float]
    mfu: float

    @property
    def total_bytes(self) -> float:
        """Memory of a rank."""
        return sum(self.memory.values())


@dataclass(frozen=True, kw_only=True)
class Search:
    """All layouts that can be, best first, and the refused ones by reason."""

    found: list[Planned]
    refused: Counter[str]


def search(
    work: Workload,
    topology: Topology,
    world: int,
    batch: int,
    precision: Precision,
    *,
    built: bool = False,
) -> Search:
    """Judge every layout of `world` ranks; `ConfigError` where none can be.

    `built`: those alone that the training engine runs today.
    """
    require(world >= 1, "gpus", "at least 1", world, "use 1")
    require(
        world <= topology.num_devices,
        "gpus",
        f"at most the {topology.num_devices} devices of {topology.name}",
        world,
        "raise across.zones or zone.hosts in the topology",
    )
    limit = topology.device.memory_gb * GIGA * topology.device.usable
    limit /= topology.slowdown(world) if topology.host.cores else 1
    refused: Counter[str] = Counter()
    found = []
    for plan in layouts(world):
        reason = refusal(plan, work, topology, batch) or (unbuilt(plan) if built else "")
        held = {} if reason else memory(plan, work, batch / world, precision)
        if not reason and sum(held.values()) > limit:
            largest = max(held, key=lambda part: held[part])
            reason = f"memory above {limit / GIGA:.0f} GB a device, most of it {largest}"
        if reason:
            refused[reason] += 1
            continue
        step = step_time(plan, work, topology, batch, precision)
        reached = mfu(step, work, topology, batch, world, precision)
        found.append(Planned(plan=plan, step=step, memory=held, mfu=reached))
    if not found:
        reasons = "; ".join(f"{count} x {reason}" for reason, count in refused.most_common())
        raise ConfigError(
            f"gpus must be a number with a possible layout, got {world} ({reasons}); "
            "use more devices or a smaller batch"
        )
    found.sort(key=lambda p: (p.step.total, p.total_bytes))
    return Search(found=found, refused=refused)
