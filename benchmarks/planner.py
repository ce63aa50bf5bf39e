"""The planner against measured steps: `python -m benchmarks planner [--quick]`.

Three sizes on one, two and four gloo ranks. Every constant of the topology is measured in the same
run by microbenchmarks, none on a step that is predicted (benchmarks/_planner_ranks.py); the planner
then predicts the steps that the training engine takes, by the clock (the target) and in seconds of
a rank's processor, which other work on the machine hardly changes.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Mapping
from dataclasses import replace

from benchmarks._measure import BenchmarkError, Bound, report
from benchmarks._planner_ranks import (
    CASES,
    COPY,
    MICRO_SHARES,
    PRODUCT,
    SUM,
    Case,
    config_of,
    lengths_of,
)
from pipeline.pretraining.planner.cost import StepTime, step_time
from pipeline.pretraining.planner.layouts import Plan
from pipeline.pretraining.planner.topology import Device, Host, Peaks, Topology, Zone
from pipeline.pretraining.planner.workload import TRAINING, Workload, workload
from pipeline.run.ranks import run_ranks

TARGETS: dict[str, Bound] = {"planner_worst_error_pct": ("<=", 25.0)}
WORLDS = (1, 2, 4)
KINDS = ("clock", "processor")  # of seconds
GIGA = 1e9


def main(argv: list[str]) -> int:
    """Measure, predict, compare."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks planner")
    parser.add_argument("--quick", action="store_true", help="fewer turns")
    turns = 4 if parser.parse_args(argv).quick else 31
    figures: dict[str, float] = {}
    for world in WORLDS:
        found = run_ranks(world, "benchmarks._planner_ranks", str(turns))
        print(constants(topology_of(found["clock"], "base", work_of(CASES["base"], 1), world)))
        for kind in KINDS:
            for name, case in CASES.items():
                step = predicted(found[kind], name, case, found["flops"][name], world)
                measured = found[kind][f"{name}.step"]
                error = 100 * (step.total / measured - 1)
                print(kind.ljust(10) + line(name, world, step, measured, error), flush=True)
                figures[f"{kind}_error_pct.{name}.{world}"] = error
    worst = {kind: max(abs(e) for n, e in figures.items() if n.startswith(kind)) for kind in KINDS}
    figures["planner_worst_error_pct"] = worst["clock"]
    figures["planner_worst_processor_error_pct"] = worst["processor"]
    return report("planner", figures, TARGETS)


def predicted(
    seconds: Mapping[str, float], name: str, case: Case, flops: float, world: int
) -> StepTime:
    """What the planner says of a step."""
    work = work_of(case, flops)
    topology = topology_of(seconds, name, work, world)
    return step_time(plan_of(world), work, topology, case.rows * world, "float32")


def constants(topology: Topology) -> str:
    """What a topology file of this machine would say."""
    device, host = topology.device, topology.host
    own = f"{1e3 * device.tflops.float32:.3g} GFLOP/s, copy {device.memory_gb_per_s:.3g} GB/s"
    return f"{host.devices} ranks: {own}, link {host.gb_per_s:.3g} GB/s, {host.latency_us:.3g} us"


def plan_of(world: int) -> Plan:
    """The layout of `config_of`."""
    return Plan(
        dense_shard=world,
        dense_replica=1,
        expert=1,
        sparse_shard=world,
        sparse_replica=1,
        zero_stage=int(world > 1),
        sharding="row" if world > 1 else "table",
    )


def work_of(case: Case, flops: float) -> Workload:
    """The workload of a case; its batches are alike in cost, so that none is the heaviest."""
    config = config_of(case, 1)
    lengths = lengths_of(config, case.rows, 0)
    means = {name: float(length.double().mean()) for name, length in lengths.items()}
    counts = len(config.objectives), len(config.surfaces)
    found = workload(case.features, config.model, config.features, *counts, means, cost_cv=0.0)
    return replace(found, flops=flops)


def topology_of(seconds: Mapping[str, float], name: str, work: Workload, world: int) -> Topology:
    """The ranks of this machine as a topology, from what was measured while all of them worked.

    What a dense part takes is a line over the rows: its slope gives the local rate, its start what
    a step takes without any. The engine's own share of that is what a tiny model's step takes
    beyond its dense part.
    """
    (few, few_s), (many, many_s) = (
        (int(share * CASES[name].rows), seconds[f"{name}.local.{share}"]) for share in MICRO_SHARES
    )
    per_row = (many_s - few_s) / (many - few)
    if per_row <= 0:
        raise BenchmarkError(
            f"{name}: {many} rows took no longer than {few} ({many_s:.3g} and {few_s:.3g} s); "
            "the machine is too busy, try again"
        )
    fixed = max(0.0, few_s - few * per_row)
    around = max(0.0, seconds["tiny.step"] - seconds["tiny.local"])
    rate = TRAINING * work.flops / per_row
    peak = max(2 * PRODUCT**3 / seconds["product"], rate)
    copied = 2 * 4 * COPY / seconds["copy"]
    latency = seconds["small_sum"] / 2 / max(1, math.ceil(math.log2(world)))
    summed = max(seconds["sum"] - seconds["small_sum"], 1e-9)
    moved = 2 * 4 * SUM * (1 - 1 / world) / summed
    device = Device(
        name="core",
        tflops=Peaks(float32=peak / 1e12),
        local_mfu=rate / peak,
        memory_gb=64,
        memory_gb_per_s=copied / GIGA,
        step_overhead_ms=1e3 * (fixed + around),
    )
    link = max(moved / GIGA, 1e-3)
    host = Host(devices=world, gb_per_s=link, latency_us=1e6 * max(latency, 1e-7))
    zone = Zone(hosts=1, gb_per_s=link, latency_us=1e6 * max(latency, 1e-7))
    return Topology(name="this machine", device=device, host=host, zone=zone)


def line(name: str, world: int, step: StepTime, measured: float, error: float) -> str:
    """One comparison, and where the predicted time goes."""
    terms = {term: getattr(step, term) for term in step.__slots__}
    shares = ", ".join(f"{t} {1e3 * s:.1f}" for t, s in terms.items() if s > 0.005 * step.total)
    head = f"{name:8}{world} ranks: {1e3 * step.total:8.1f} ms predicted, {1e3 * measured:8.1f}"
    return f"{head} measured, {error:+6.1f}%  ({shares})"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
