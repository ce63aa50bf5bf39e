"""The training engine: two ranks, parity, its overhead, checkpoints, restart, balance.

`python -m benchmarks training [--quick]` plants a day (`small`; --quick: a quarter of the users and
impressions) in 8 buckets for each of two ranks, runs it up to the mix and trains a pass on one rank
and on two, taking turns, each rank with one thread: on the same batches, and (`two_rank_wide`) on
batches of twice the rows. The engine and a hand-written loop of plain torch take turns in one
process; four ranks in every layout are held against that loop. Speeds are ratios of one run.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks._measure import Bound, child, report
from pipeline.mixing.balance import assign_buckets
from pipeline.mixing.loader import Loader
from pipeline.run.paths import Run, open_run
from pipeline.run.ranks import run_ranks
from pipeline.run.window import window_of

TARGETS: dict[str, Bound] = {
    "two_rank_speedup": (">=", 1.7),
    "parity_max_diff": ("<=", 1e-5),
    "wrapper_overhead_pct": ("<=", 10.0),
    "checkpoint_stall_pct": ("<=", 5.0),
    "restart_s": ("<=", 20.0),
    "imbalance_pct": ("<=", 5.0),
}
SAVE_EVERY = 10


def main(argv: list[str]) -> int:
    """Plant, train, measure; print the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks training")
    parser.add_argument("--quick", action="store_true", help="less data and fewer steps")
    quick = parser.parse_args(argv).quick
    repeats, steps = (2, 15) if quick else (5, 60)
    with tempfile.TemporaryDirectory(prefix="headwater-bench-") as home:
        folder = child("benchmarks.loader:plant", home=home, quick=quick, buckets=16).value
        figures = speeds(folder, repeats)
        differences = run_ranks(4, "benchmarks._rank_steps", "parity", folder)
        figures["parity_max_diff"] = max(differences.values())
        for what in ("overhead", "stall", "imbalance"):
            turns: dict[str, Any] = {"steps": steps} if what != "imbalance" else {}
            figures |= child(f"benchmarks.training:{what}", folder=folder, **turns).value
        figures["restart_s"] = child("benchmarks.training:restart", folder=folder).seconds
    for name, value in {**figures, **differences}.items():
        print(f"{name:24} {value:12.4g}")
    return report("training", figures, TARGETS)


def speeds(folder: str, repeats: int) -> dict[str, float]:
    """Rows a second of one rank and of two, and their ratios, turn by turn."""
    found: dict[str, list[float]] = {"one_rank": [], "two_rank": [], "two_rank_wide": []}
    calls = zip(found, ((1, "speed"), (2, "speed"), (2, "wide")), strict=True)
    for name, (ranks, what) in [*calls] * repeats:
        answer = run_ranks(ranks, "benchmarks._rank_steps", what, folder)
        found[name].append(answer["rows_per_s"])
    figures = {f"{name}_rows_per_s": statistics.median(rates) for name, rates in found.items()}
    for name in ("two_rank", "two_rank_wide"):
        ratios = [two / one for one, two in zip(found["one_rank"], found[name], strict=True)]
        figures[f"{name}_speedup"] = statistics.median(ratios)
    return figures


def overhead(folder: str, steps: int) -> dict[str, float]:
    """What the engine takes beyond the hand-written loop, over the same batches, step by step."""
    from benchmarks._plain_loop import PlainLoop
    from model.foundation import training_loss
    from pipeline.pretraining.setup import build_engine

    run, weights_K = _one_thread(folder)
    loader = Loader(run, batch_size=run.config.train.batch_size)
    engine = build_engine(run)
    plain = PlainLoop(engine._build(), run.config.train)
    took: dict[str, list[float]] = {"engine": [], "plain": []}
    for step in range(steps):
        batch = loader.batch(step % (loader.num_batches - 1))
        began = time.process_time()
        engine.backward(training_loss(engine.forward(batch), batch, weights_K))
        engine.step()
        between = time.process_time()
        plain.step(training_loss(plain.forward(batch), batch, weights_K))
        took["engine"].append(between - began)
        took["plain"].append(time.process_time() - between)
    engine_s, plain_s = (statistics.median(took[n][3:]) for n in ("engine", "plain"))
    return {
        "wrapper_overhead_pct": 100 * (engine_s / plain_s - 1),
        "engine_step_ms": 1e3 * engine_s,
        "plain_step_ms": 1e3 * plain_s,
    }


def stall(folder: str, steps: int) -> dict[str, float]:
    """How long training waits for a checkpoint, of a step; and steps beside a writing thread."""
    from pipeline.pretraining.pretrain import Training

    run, _ = _one_thread(folder)
    training = Training(run, window_of(run.config), "benchmark")
    waits: list[float] = []
    alone: list[float] = []
    beside: list[float] = []
    for place, batch in zip(range(4 * SAVE_EVERY + steps), training._batches(), strict=False):
        began = time.monotonic()
        training.step(batch)
        took = time.monotonic() - began
        (beside if place % SAVE_EVERY == 0 else alone).append(took)
        if place % SAVE_EVERY == SAVE_EVERY - 1:
            began = time.monotonic()
            training.save()
            waits.append(time.monotonic() - began)
    training.saver.wait()
    step_s = statistics.median(alone)
    return {
        "checkpoint_stall_pct": 100 * statistics.median(waits) / step_s,
        "beside_write_pct": 100 * (statistics.median(beside) / step_s - 1),
    }


def restart(folder: str) -> float:
    """Go on from the checkpoint that `stall` left and take a step."""
    from pipeline.pretraining.pretrain import Training

    run, _ = _one_thread(folder)
    training = Training(run, window_of(run.config), "benchmark")
    began_at = training.engine.steps
    training.step(next(training._batches()))
    shutil.rmtree(run.inside("checkpoints"))
    return float(began_at)


def imbalance(folder: str) -> dict[str, float]:
    """Cost of the heaviest of two ranks over their mean, by step; and without balancing."""
    run = open_run(Path(folder))
    size = run.config.train.batch_size
    ranks = [Loader(run, batch_size=size, rank=r, world_size=2) for r in range(2)]
    cost_RS = np.array([_costs(loader) for loader in ranks])
    one = Loader(run, batch_size=size)
    cost_N = _row_costs(one)
    bucket_N = one.columns["bucket"]
    by_bucket = np.bincount(bucket_N, cost_N, run.config.window.num_buckets)
    rank_N = assign_buckets(by_bucket, 2)[bucket_N]
    firsts = [one.first_row(b) for b in range(one.num_batches)]
    plain_RS = np.array([np.add.reduceat(cost_N * (rank_N == r), firsts) for r in range(2)])
    return {
        "imbalance_pct": _over_mean_pct(cost_RS),
        "unbalanced_pct": _over_mean_pct(plain_RS),
    }


def _over_mean_pct(cost_RS: np.ndarray) -> float:
    return float(100 * (cost_RS.max(0) / cost_RS.mean(0) - 1).mean())


def _costs(loader: Loader) -> list[int]:
    batches = (loader.batch(b) for b in range(loader.num_batches))
    return [b.num_rows + sum(len(e.gap_E) for e in b.events.values()) for b in batches]


def _row_costs(loader: Loader) -> np.ndarray:
    batch = loader.rows(0, loader.num_rows)
    lengths = (events.lengths_B.numpy() for events in batch.events.values())
    return np.sum([np.ones(loader.num_rows, dtype=np.int64), *lengths], axis=0)


def _one_thread(folder: str) -> tuple[Run, torch.Tensor]:
    torch.set_num_threads(1)
    run = open_run(Path(folder))
    return run, torch.tensor([o.task_weight for o in run.config.objectives])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
