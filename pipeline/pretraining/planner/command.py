"""The best layout of a training: `python -m pipeline plan --gpus 4096 --topology gb200-rack`.

Prints the ten best layouts, the memory of the best by part and why others were refused. `--out`
writes the best as `train.*` overrides, and where its groups lie beside it. `--scaling` plots MFU
and step time over numbers of devices instead. docs/planner.md explains the model.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from model.config import Arch, ConfigError, FeatureSet
from model.shape import reference_shape
from model.sizes import SIZES
from pipeline.pretraining.planner.published import published
from pipeline.pretraining.planner.scaling import plot, scale
from pipeline.pretraining.planner.search import Planned, Search, search
from pipeline.pretraining.planner.topology import (
    GIGA,
    PRECISIONS,
    Group,
    Precision,
    Topology,
    read_topology,
)
from pipeline.pretraining.planner.workload import Workload, workload
from pipeline.run.errors import EXIT_OK, require
from pipeline.run.manifest import write_json
from pipeline.run.paths import REPOSITORY, open_run

ROWS_PER_DEVICE = 512
SHOWN = 10
PUBLISHED = "published"
TOPOLOGIES = REPOSITORY / "deploy" / "topologies"


def main(argv: list[str]) -> int:
    """Print the table, and write what was asked for."""
    arguments = _parser().parse_args(argv)
    topology = read_topology(topology_path(arguments.topology))
    work = _workload(arguments)
    precision: Precision = arguments.precision or _lowest(topology)
    rows = arguments.rows_per_gpu
    if arguments.scaling:
        found = scale(work, topology, rows, precision)
        plot(found, work, topology, arguments.scaling)
        print("\n".join([*(point.line for point in found), str(arguments.scaling)]))
        return EXIT_OK
    world = arguments.gpus
    require(world is not None, "gpus", "given", "nothing", "add --gpus N")
    batch = arguments.batch or rows * world
    judged = search(work, topology, world, batch, precision, built=arguments.built)
    best = judged.found[0]
    title = f"{work.name} on {world} of {topology.name}, {batch} rows a step, {precision}"
    print("\n".join([title, "", *text(judged), "", *parts(best)]))
    if arguments.out:
        write_json(arguments.out, best.plan.overrides(batch))
        beside = arguments.out.with_suffix(".groups.json")
        write_json(beside, placement(best, topology))
        print(f"\n{arguments.out}\n{beside}")
    return EXIT_OK


def topology_path(name: str) -> Path:
    """A topology file by its path, or by its name in deploy/topologies."""
    path = Path(name)
    return path if path.suffix == ".toml" else TOPOLOGIES / f"{name}.toml"


def text(judged: Search) -> list[str]:
    """The best layouts as a table, and counts of the refused ones."""
    columns = ("shard", "replica", "expert", "zero", "t.shard", "t.replica", "cut")
    head = "".join(f"{name:>10}" for name in columns)
    lines = [f"{head}{'step ms':>10}{'MFU':>7}{'GB':>7}  waits most for"]
    lines += [_line(planned) for planned in judged.found[:SHOWN]]
    lines += ["", f"{len(judged.found)} layouts can be had; refused:"]
    return lines + [f"{count:>7}  {reason}" for reason, count in judged.refused.most_common()]


def parts(best: Planned) -> list[str]:
    """Where the best layout's time and memory go."""
    times = {name: getattr(best.step, name) for name in best.step.__slots__}
    shares = [f"{n} {1e3 * s:.3g} ms" for n, s in times.items() if s > best.step.total / 1_000]
    held = [f"{name} {size / GIGA:.3g} GB" for name, size in best.memory.items()]
    return [f"step: {', '.join(shares)}", f"memory: {', '.join(held)}"]


def placement(best: Planned, topology: Topology) -> dict[str, Any]:
    """Where the groups of each degree lie, and what is predicted of the layout."""
    return {
        "topology": topology.name,
        "predicted": {
            "step_s": best.step.total,
            "mfu": best.mfu,
            "memory_bytes": best.memory,
            "seconds": {name: getattr(best.step, name) for name in best.step.__slots__},
        },
        "groups": {n: _placed(group, topology) for n, group in best.plan.groups.items()},
    }


def _placed(group: Group, topology: Topology) -> dict[str, Any]:
    """A degree's groups: the first has ranks 0, stride, 2 x stride ..., and `within` holds it."""
    within = group.span(topology).name
    return {"size": group.size, "stride": group.stride, "within": within}


def _line(planned: Planned) -> str:
    plan = planned.plan
    cells: Iterable[Any] = (
        plan.dense_shard,
        plan.dense_replica,
        plan.expert,
        plan.zero_stage,
        plan.sparse_shard,
        plan.sparse_replica,
        plan.sharding,
    )
    head = "".join(f"{cell:>10}" for cell in cells)
    figures = f"{1e3 * planned.step.total:>10.4g}{planned.mfu:>7.1%}"
    return f"{head}{figures}{planned.total_bytes / GIGA:>7.1f}  {planned.step.limit}"


def _lowest(topology: Topology) -> Precision:
    """bfloat16 where the device computes in it."""
    return "bfloat16" if topology.device.tflops.bfloat16 else "float32"


def _workload(arguments: argparse.Namespace) -> Workload:
    if arguments.run:
        config = open_run(arguments.run).config
        model = replace(config.model, arch=arguments.model or config.model.arch)
        counts = len(config.objectives), len(config.surfaces)
        lengths = _lengths(config.features, arguments.history)
        return workload(str(arguments.run), model, config.features, *counts, lengths)
    if arguments.size == PUBLISHED:
        return published()
    shape, model = reference_shape(arguments.size)
    model = replace(model, arch=arguments.model or model.arch)
    counts = len(shape.objectives), shape.num_surfaces
    lengths = _lengths(shape.features, arguments.history)
    return workload(arguments.size, model, shape.features, *counts, lengths)


def _lengths(features: FeatureSet, history: int | None) -> dict[str, float]:
    if history is not None and history < 0:
        raise ConfigError(f"history must be at least 0, got {history}; use 0 for rows without any")
    return {e.name: float(e.max_len if history is None else history) for e in features.events}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m pipeline plan", description=__doc__)
    parser.add_argument("--gpus", type=int, help="devices, each with one rank")
    known = ", ".join(sorted(p.stem for p in TOPOLOGIES.glob("*.toml")))
    parser.add_argument("--topology", required=True, help=f"a TOML file, or one of {known}")
    parser.add_argument("--size", default="large", choices=(*SIZES, PUBLISHED))
    parser.add_argument("--model", choices=get_args(Arch), help="default: the config's own")
    parser.add_argument("--run", type=Path, help="a run folder: its features and its model")
    parser.add_argument("--history", type=int, help="events per type; default: each type's max_len")
    parser.add_argument("--batch", type=int, help="rows of all ranks; default: --rows-per-gpu each")
    parser.add_argument("--rows-per-gpu", type=int, default=ROWS_PER_DEVICE)
    parser.add_argument("--precision", choices=PRECISIONS, help="default: bfloat16 where there is")
    parser.add_argument("--built", action="store_true", help="only what training runs today")
    parser.add_argument("--out", type=Path, help="JSON file for the best layout")
    parser.add_argument("--scaling", type=Path, help="PNG file: MFU over 8 to 8192 devices")
    return parser
