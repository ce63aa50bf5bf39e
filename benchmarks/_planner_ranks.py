"""What benchmarks.planner runs on every rank: `python -m benchmarks._planner_ranks TURNS`.

First the constants of a topology, by microbenchmarks that all ranks run at once: the rate of a
matrix product, of a copy in memory and of gloo, and what a step takes however little it does. Then
for each size its local rate, on a plain dense part and with other rows than those of a step, and
at last the steps of the training engine. No constant is read off a step that is predicted.

Suffixes: B rows.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks._steps import jagged, synthetic
from model.batch import Batch
from model.config import ModelConfig
from model.flops import flops_per_row
from model.foundation import FoundationModel, training_loss
from model.parallel import Engine
from model.ranks import any_rank, barrier, join_process_group, total, world_size
from model.sizes import model_config
from pipeline.pretraining.setup import build_engine
from pipeline.run.config import RunConfig, with_overrides
from pipeline.run.paths import Run
from pipeline.run.presets import preset
from pipeline.run.process import prepare
from pipeline.run.ranks import answered

DAY = "2026-11-29"
PRODUCT, COPY, SUM = 512, 8 << 20, 8 << 20  # a square matrix; elements, beyond any cache
TINY_ROWS = 2
MICRO_SHARES = (0.25, 1.5)  # of a step's rows: neither is the step's own number
WARM = 1  # turns that do not count


@dataclass(frozen=True, kw_only=True)
class Case:
    """A size: whose features, which model, and the rows of a rank's step."""

    features: str
    model: ModelConfig
    rows: int


MIDDLE = replace(
    model_config("base"),
    embedding_dim=32,
    width=64,
    layers=4,
    summary_tokens=8,
    seeds=16,
    fm_rank=16,
    mlp_width=256,
)
CASES = {
    "small": Case(features="small", model=model_config("small"), rows=128),
    "middle": Case(features="small", model=MIDDLE, rows=64),
    "base": Case(features="base", model=model_config("base"), rows=32),
}
TINY = Case(
    features="small", model=replace(ModelConfig(), layers=1, last_attention="skip"), rows=TINY_ROWS
)


def config_of(case: Case, world: int) -> RunConfig:
    """The run that trains a case over so many ranks, as their number suggests."""
    spread = {"train.ranks": world, "train.zero_stage": 1, "train.layout.sharding": "row"}
    settings: dict[str, Any] = {"window.num_buckets": 4, "train.batch_size": case.rows * world}
    settings |= spread if world > 1 else {}
    config = replace(preset(DAY, case.features), model=case.model)
    return with_overrides(config, settings)


def lengths_of(config: RunConfig, rows: int, seed: int) -> dict[str, Tensor]:
    """Events of each row by type."""
    found = enumerate(config.features.events)
    return {e.name: jagged(rows, e.max_len, seed + i) for i, e in found}


def measure(turns: int) -> dict[str, Any]:
    """Times of every microbenchmark and of every step by name, and FLOPs of a row by size."""
    torch.set_num_threads(1)
    join_process_group()
    world = world_size()
    calls = {"product": _product(), "copy": _copy(), "small_sum": _sum(1), "sum": _sum(SUM)}
    calls |= {"tiny.local": _local(TINY, TINY_ROWS), "tiny.step": _steps(TINY, world)}
    for name, case in CASES.items():
        for share in MICRO_SHARES:
            calls[f"{name}.local.{share}"] = _local(case, int(share * case.rows))
        calls[f"{name}.step"] = _steps(case, world)
    clock, processor = _timed(calls, turns)
    per_row = {name: flops(config_of(case, 1), case.rows) for name, case in CASES.items()}
    return {"clock": clock, "processor": processor, "flops": per_row}


def flops(config: RunConfig, rows: int) -> float:
    """Forward FLOPs of a row, on average over the rows of a step."""
    counts = len(config.objectives), lengths_of(config, rows, 0), len(config.surfaces)
    return float(flops_per_row(config.model, config.features, *counts).double().mean())


def _local(case: Case, rows: int) -> Callable[[], object]:
    """Forward and backward of a plain model's dense part, without tables, engine or exchange."""
    config = config_of(case, 1)
    torch.manual_seed(0)
    model = FoundationModel(config.features, config.objectives, len(config.surfaces), config.model)
    batch = synthetic(config, lengths_of(config, rows, 0), seed=0)
    with torch.no_grad():
        inputs = model.sparse(batch)
    inputs.embedded_BFD.requires_grad_()
    for events in inputs.events.values():
        for block in events.embedded:
            block.requires_grad_()
    weights_K = torch.ones(len(config.objectives))

    def run() -> None:
        for parameter in model.dense.parameters():
            parameter.grad = None
        training_loss(model.dense(inputs), batch, weights_K).backward()

    return run


def _steps(case: Case, world: int) -> Callable[[], object]:
    """A step of the training engine on rows of this rank's own."""
    config, seed = config_of(case, world), dist.get_rank()
    engine = build_engine(Run(folder=Path(), config=config))
    lengths = lengths_of(config, case.rows, 0)
    batches = cycle([synthetic(config, lengths, seed=100 * i + seed) for i in range(4)])
    weights_K = torch.ones(len(config.objectives))
    return lambda: _step(engine, next(batches), weights_K)


def _step(engine: Engine, batch: Batch, weights_K: Tensor) -> None:
    engine.backward(training_loss(engine.forward(batch), batch, weights_K))
    engine.step()


def _product() -> Callable[[], object]:
    left, right = torch.randn(2, PRODUCT, PRODUCT)
    return lambda: left @ right


def _copy() -> Callable[[], object]:
    source, target = torch.randn(COPY), torch.empty(COPY)
    return lambda: target.copy_(source)


def _sum(elements: int) -> Callable[[], object]:
    value = torch.zeros(elements)
    return lambda: total(value)


def _timed(
    calls: Mapping[str, Callable[[], object]], turns: int
) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds by the clock and of a rank's processor, each call running once in every turn.

    A call begins on all ranks together and ends with the last one. By the clock the fastest turn
    counts, since other work on the machine only adds; of the processor the median, over all ranks.
    """
    clock: dict[str, list[float]] = {name: [] for name in calls}
    processor: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(WARM + turns):
        for name, call in calls.items():
            barrier()
            began, worked = time.monotonic(), time.process_time()
            call()
            processor[name].append(time.process_time() - worked)
            barrier()
            clock[name].append(time.monotonic() - began)
    medians = torch.tensor([statistics.median(found[WARM:]) for found in processor.values()])
    means = (total(medians.double()) / world_size()).tolist()
    fastest = {name: min(found[WARM:]) for name, found in clock.items()}
    return fastest, dict(zip(calls, means, strict=True))


def main(turns: str, answers: Path) -> None:
    """Do it as the rank that the environment names."""
    answered(answers, int(os.environ["RANK"]), lambda: measure(int(turns)))
    any_rank(False)  # leave together


if __name__ == "__main__":
    prepare()
    main(sys.argv[1], Path(sys.argv[3]))
