"""How a workload scales: the best layout of every power of two of devices, and what limits it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.pretraining.planner.search import Planned, search
from pipeline.pretraining.planner.topology import GIGA, Precision, Topology
from pipeline.pretraining.planner.workload import Workload
from pipeline.run.errors import ConfigError

WORLDS = tuple(2**power for power in range(3, 14))
STYLE: Any = {"font.size": 8, "axes.spines.top": False, "axes.spines.right": False}


@dataclass(frozen=True, kw_only=True)
class Point:
    """The best layout of so many devices; None where none fits."""

    world: int
    best: Planned | None

    @property
    def line(self) -> str:
        """A row of a table."""
        if self.best is None:
            return f"{self.world:>6}  no layout fits"
        plan, step = self.best.plan, self.best.step
        share = getattr(step, step.limit) / step.total
        dense = f"dense {plan.dense_shard} x {plan.dense_replica} x {plan.expert}"
        tables = f"tables {plan.sparse_shard} x {plan.sparse_replica} by {plan.sharding}"
        figures = f"{1e3 * step.total:>9.4g} ms  MFU {self.best.mfu:>6.1%}"
        held = f"{self.best.total_bytes / GIGA:>6.1f} GB"
        return f"{self.world:>6}{figures}{held}  {dense}, {tables}; {step.limit} {share:.1%}"


def scale(
    work: Workload, topology: Topology, rows_per_device: int, precision: Precision
) -> list[Point]:
    """A point for 8, 16 ... 8192 devices, as many as the topology has, with as many rows each."""
    found = []
    for world in (w for w in WORLDS if w <= topology.num_devices):
        try:
            judged = search(work, topology, world, world * rows_per_device, precision)
        except ConfigError:
            found.append(Point(world=world, best=None))
        else:
            found.append(Point(world=world, best=judged.found[0]))
    if all(point.best is None for point in found):
        raise ConfigError(
            f"size must fit {topology.name}, got {work.name}, which fits on no number of devices; "
            "use fewer --rows-per-gpu"
        )
    return found


def plot(found: list[Point], work: Workload, topology: Topology, path: Path) -> None:
    """Draw MFU, and step time by what it goes to."""
    import matplotlib as mpl  # loaded for this alone
    from matplotlib.figure import Figure

    kept = [(place, point.best) for place, point in enumerate(found) if point.best]
    places = [place for place, _ in kept]
    longest = max(1e3 * best.step.total for _, best in kept)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(8, 3.2), layout="constrained")
        left, right = figure.subplots(1, 2)
        left.plot(places, [100 * best.mfu for _, best in kept], marker="o", markersize=3)
        for place, best in kept:
            label = best.step.limit.replace("_", " ")
            left.annotate(label, (place, 100 * best.mfu), (0, 5), textcoords="offset points",
                          rotation=45, fontsize=6)  # fmt: skip
        left.axhline(100 * topology.device.local_mfu, linestyle=":", color="gray")
        left.set(title="MFU, % (dotted: local); waits most for", ylim=(0, None))
        bottom = [0.0] * len(kept)
        for term in kept[0][1].step.__slots__:
            heights = [1e3 * getattr(best.step, term) for _, best in kept]
            if max(heights) > 0.005 * longest:
                right.bar(places, heights, bottom=bottom, label=term.replace("_", " "))
            bottom = [b + h for b, h in zip(bottom, heights, strict=True)]
        right.set(title="step, ms")
        right.legend(frameon=False, fontsize=6, loc="center left", bbox_to_anchor=(1, 0.5))
        for axes in (left, right):
            axes.set_xticks(range(len(found)), [str(p.world) for p in found], rotation=45)
            axes.set(xlabel="devices", xlim=(-0.7, len(found) - 0.3))
            for place in set(range(len(found))) - set(places):
                axes.annotate("does not fit", (place, 0), (0, 4), textcoords="offset points",
                              rotation=90, fontsize=6, ha="center")  # fmt: skip
        figure.suptitle(f"{work.name} on {topology.name}")
        figure.savefig(path, dpi=150, metadata={"Software": None})
