"""`python -m model.summary --size base --model kunlun`: parameters, memory and FLOPs by part.

With `--run FOLDER` the features, objectives and surfaces are those of a run; without it, those of
`model.shape`. Training keeps, per dense weight, the weight, its gradient, AdamW's two
moments and the average, and per table the weights, their average and one Adagrad sum a row, all in
float32. Activations are what autograd keeps of one row between forward and backward, measured.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor
from torch.nn import Module

from model.budgets import Keep
from model.config import Arch, ConfigError, EventType, FeatureSet, ModelConfig, Objective
from model.embedding import DenseInputs, EventInputs
from model.flops import flops_by_part
from model.foundation import DenseArch
from model.recompute import give_up, recomputed, regions_of, tensors_in
from model.shape import Shape, reference_shape
from model.sizes import SIZES
from model.snapshot import config_from, features_from

FLOAT = 4  # bytes
DENSE_COPIES, TABLE_COPIES = 5, 2
ACTIVATION_ROWS = 4


@dataclass(frozen=True, kw_only=True)
class Part:
    """Parameters of a part, and the bytes that serving and training keep of it."""

    parameters: int
    serving: int
    training: int


def main(argv: list[str]) -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m model.summary")
    parser.add_argument("--size", default="small", choices=SIZES)
    parser.add_argument("--model", choices=get_args(Arch), help="default: the config's own")
    parser.add_argument("--history", type=int, help="events per type; default: each type's max_len")
    parser.add_argument("--run", type=Path, help="a run folder: its features and its model")
    arguments = parser.parse_args(argv)
    try:
        shape, config = (
            run_shape(arguments.run) if arguments.run else reference_shape(arguments.size)
        )
    except ConfigError as error:
        print(f"ConfigError: {error}", file=sys.stderr)
        return 65
    config = replace(config, arch=arguments.model or config.arch)
    lengths = {
        e.name: e.max_len if arguments.history is None else arguments.history
        for e in shape.features.events
    }
    print(f"{config.arch}, {arguments.run or 'size ' + arguments.size}")
    print("\n".join(text(shape, config, lengths)))
    return 0


def run_shape(folder: Path) -> tuple[Shape, ModelConfig]:
    """Shape and config of a run."""
    try:
        data = json.loads((folder / "run.json").read_text())
    except FileNotFoundError:
        raise ConfigError(f"{folder} holds no run.json; pass the folder of a run") from None
    shape = Shape(
        features=features_from(data["features"]),
        objectives=tuple(Objective(**o) for o in data["objectives"]),
        num_surfaces=len(data["surfaces"]),
    )
    return shape, config_from(data["model"])


def text(shape: Shape, config: ModelConfig, lengths: Mapping[str, int]) -> list[str]:
    """The tables' lines."""
    dense = DenseArch(shape.features, shape.objectives, shape.num_surfaces, config)
    parts = parts_of(dense, shape.features, config)
    histories = ", ".join(f"{n} {name}" for name, n in lengths.items()) or "no events"
    lines = [f"{'part':24}{'parameters':>14}{'serving MB':>12}{'training MB':>13}"]
    lines += [_memory(name, part) for name, part in parts.items()]
    lines += [_memory("all", _sum(parts.values()))]
    counts = len(shape.objectives), lengths, shape.num_surfaces
    flops = flops_by_part(config, shape.features, *counts)
    total = sum(flops.values())
    lines += ["", f"{'forward, a row with ' + histories:44}{'MFLOP':>10}{'share':>8}"]
    lines += [_flops(name, value, total) for name, value in flops.items()]
    lines += [_flops("all (training: three times)", total, total)]
    return [*lines, "", *_activations(dense, shape.features, config, lengths)]


def parts_of(dense: DenseArch, features: FeatureSet, config: ModelConfig) -> dict[str, Part]:
    """Memory by part: the tables, then the dense parts, the trunk's by what they do."""
    counts: dict[str, int] = {}
    for name, parameter in dense.named_parameters():
        part = _part_name(name)
        counts[part] = counts.get(part, 0) + parameter.numel()
    dense_parts = {
        name: Part(parameters=n, serving=FLOAT * n, training=FLOAT * DENSE_COPIES * n)
        for name, n in counts.items()
    }
    return {"tables": _tables(features, config)} | dense_parts


def _part_name(parameter: str) -> str:
    """trunk.layers.0.interact.x -> trunk.interact; heads.x -> heads."""
    first, *rest = parameter.split(".")
    if first != "trunk":
        return first
    inner = [name for name in rest if name != "layers" and not name.isdigit()]
    return f"trunk.{inner[0]}"


def _tables(features: FeatureSet, config: ModelConfig) -> Part:
    used = {f.table for f in features.sparse}
    used |= {a.table for e in features.events for a in e.attributes}
    rows = sum(t.buckets for t in features.tables if t.name in used)
    weights = rows * config.embedding_dim
    return Part(
        parameters=weights,
        serving=FLOAT * weights,
        training=FLOAT * (TABLE_COPIES * weights + rows),
    )


def _activations(
    dense: DenseArch, features: FeatureSet, config: ModelConfig, lengths: Mapping[str, int]
) -> list[str]:
    """What is kept of a row for backward, and with each region's budget (train.keep) at 0."""
    budgets = {"": Keep()}
    regions = regions_of(dense)
    budgets |= {f", train.keep.{name} 0": Keep(**{name: 0.0}) for name in regions}
    budgets[", all of them 0"] = Keep(**dict.fromkeys(regions, 0.0))
    lines = []
    for name, keep in budgets.items():
        given = copy.deepcopy(dense)
        give_up(given, keep)
        held = activation_bytes(given, features, config, lengths)
        lines.append(f"{'activations of a row' + name:44}{held / 1e6:10.3f} MB")
    return lines


def activation_bytes(
    dense: DenseArch, features: FeatureSet, config: ModelConfig, lengths: Mapping[str, int]
) -> float:
    """Bytes per row that a training forward pass keeps for backward, weights left out.

    Of a part that is computed again these are its inputs.
    """
    inputs = _random_inputs(features, config, lengths)
    weights = {p.untyped_storage().data_ptr() for p in dense.parameters()}
    kept: dict[int, int] = {}
    alive: list[Tensor] = []  # or a freed storage's address could come back as another's

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor)
        return tensor

    def keep_inputs(_: Module, arguments: tuple[Any, ...]) -> None:
        for tensor in tensors_in(arguments):
            keep(tensor)

    for module in recomputed(dense):
        module.register_forward_pre_hook(keep_inputs)
    dense.train()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = dense(inputs)
        output.logits_BK.sum().add(output.reconstruction)
    return sum(kept.values()) / ACTIVATION_ROWS


def _random_inputs(
    features: FeatureSet, config: ModelConfig, lengths: Mapping[str, int]
) -> DenseInputs:
    rows, width = ACTIVATION_ROWS, config.embedding_dim

    def events(event: EventType) -> EventInputs:
        total = rows * lengths[event.name]
        embedded = torch.randn(total, len(event.attributes) * width, requires_grad=True)
        return EventInputs(
            embedded=(embedded,),
            lengths_B=torch.full((rows,), lengths[event.name]),
            gap_E=torch.rand(total),
            age_E=torch.rand(total),
        )

    return DenseInputs(
        embedded_BFD=torch.randn(rows, len(features.sparse), width, requires_grad=True),
        dense_BC=torch.randn(rows, len(features.dense_columns)),
        events={e.name: events(e) for e in features.events},
        surface_B=torch.zeros(rows, dtype=torch.int64),
    )


def _sum(parts: Iterable[Part]) -> Part:
    listed = list(parts)
    return Part(
        parameters=sum(p.parameters for p in listed),
        serving=sum(p.serving for p in listed),
        training=sum(p.training for p in listed),
    )


def _memory(name: str, part: Part) -> str:
    sizes = f"{part.serving / 1e6:>12.2f}{part.training / 1e6:>13.2f}"
    return f"{name:24}{part.parameters:>14,}{sizes}"


def _flops(name: str, value: float, total: float) -> str:
    return f"{name:44}{value / 1e6:>10.4f}{value / total:>8.1%}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
