"""Trainings that differ in one thing, compared on the same held-out rows, users and seeds.

Suffixes: D draws (place 0: the rows as they are), S seeds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import polars as pl

from benchmarks._measure import BenchmarkError, Cost, child
from model.foundation import FoundationModel
from pipeline.evaluation.evaluate import frame_of
from pipeline.evaluation.intervals import Interval, interval, resample
from pipeline.evaluation.metrics import Floats
from pipeline.evaluation.scoring import holdout, score
from pipeline.evaluation.truth import with_truth
from pipeline.run.paths import Run

DRAWS = 500
OBJECTIVE = "click"
Task = tuple[str, int]  # an arm and a seed


def trained(
    function: str, arms: Sequence[str], seeds: int, processes: int, **given: Any
) -> dict[Task, Cost]:
    """Call `function(arm=, seed=, **given)` for all arms and seeds, each in a process of its own.

    `processes` run side by side; arms take turns, so that a busy minute hits all alike.
    """

    def train(task: Task) -> tuple[Task, Cost]:
        arm, seed = task
        cost = child(function, arm=arm, seed=seed, **given)
        print(f"{arm}, seed {seed}: {cost.processor_s:.0f} s of processor", flush=True)
        return task, cost

    with ThreadPoolExecutor(processes) as pool:
        return dict(pool.map(train, [(arm, seed) for seed in range(seeds) for arm in arms]))


def write_scores(run: Run, models: Mapping[str, FoundationModel]) -> str:
    """Score the holdout under models by their columns' prefix, beside the truth; the path."""
    loader = holdout(run)
    path = run.folder / "scores.parquet"
    with_truth(run, frame_of(run, loader.columns, score(models, loader))).write_parquet(path)
    return str(path)


def nes(frames: Mapping[str, pl.DataFrame]) -> dict[str, Floats]:
    """NE [D] of each arm's clicks against the planted probabilities; draws are paired."""
    known = {arm: frame.filter(pl.col(f"m_{OBJECTIVE}")) for arm, frame in frames.items()}
    first, base = next(iter(known.items()))
    for arm, frame in known.items():
        if not frame["impression_id"].equals(base["impression_id"]):
            raise BenchmarkError(f"arm {arm} scored other rows than {first}; its holdout differs")
    drawn = resample(
        base["user_id"].to_numpy(),
        base[f"true_{OBJECTIVE}"].to_numpy(),
        {arm: frame[f"p_{OBJECTIVE}"].to_numpy() for arm, frame in known.items()},
        draws=DRAWS,
        with_auc=False,
    )
    return {arm: draws.ne_D for arm, draws in drawn.items()}


def costs_pct(frames: Mapping[str, pl.DataFrame], base: str) -> dict[str, Floats]:
    """Rise [D] of each arm's NE over the base's, in percent."""
    found = nes(frames)
    return {
        arm: 100 * (ne_D - found[base]) / found[base] for arm, ne_D in found.items() if arm != base
    }


def over_seeds(each: Sequence[Floats]) -> Interval:
    """The mean over seeds: users drawn anew, and the seeds' scatter."""
    values_SD = np.stack(each)
    if len(values_SD) < 2:
        raise BenchmarkError(f"{len(values_SD)} seed has no scatter; train at least 2")
    return with_scatter(values_SD.mean(axis=0), values_SD[:, 0].tolist())


def with_scatter(mean_D: Floats, each: Sequence[float], seed: int = 0) -> Interval:
    """A mean over seeds or worlds: its draws, widened by their scatter with Student's t.

    Resampling three seeds would take three of one sign, a quarter of all cases without any effect,
    for a finding; t with two degrees of freedom knows how little three seeds say of their scatter.
    Of one alone nothing is known, and nothing added.
    """
    noise_D: Floats = np.zeros(len(mean_D) - 1)
    if len(each) > 1:
        error = np.std(each, ddof=1) / len(each) ** 0.5
        noise_D = error * np.random.default_rng(seed).standard_t(len(each) - 1, len(noise_D))
    return interval(np.concatenate([mean_D[:1], mean_D[1:] + noise_D]))


def mean_of_worlds(each: Sequence[Floats]) -> Floats:
    """The mean [D] over worlds that share no row: draws of one are paired with any of another.

    Arms that are drawn together stay paired, since all are shuffled alike.
    """
    rng = np.random.default_rng(0)
    mixed = [np.concatenate([v_D[:1], rng.permutation(v_D[1:])]) for v_D in each]
    return np.asarray(np.mean(mixed, axis=0))
