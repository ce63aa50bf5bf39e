"""The loader against a row-wise torch DataLoader, and how long pretraining waits for data.

`python -m benchmarks loader [--quick]` plants a day (`small`; --quick: a quarter of the users and
impressions), runs it up to the mix, checks that both make the same batches, and times both over the
same rows, taking turns in one process, on one core, without start-up. `data_wait_frac` is what the
real stage `pretrain` reports of its first steps, with its model, its threads and its batch size.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path

import torch

from benchmarks._measure import BenchmarkError, Bound, child, report
from benchmarks._rowwise import row_batches
from model.batch import Batch, EventBatch
from pipeline.mixing.loader import Loader
from pipeline.run.paths import open_run
from pipeline.run.runs import units_of

DAY = "2026-11-29"
TARGETS: dict[str, Bound] = {"vs_rowwise": (">=", 20.0), "data_wait_frac": ("<=", 0.05)}
_TENSORS = tuple(f.name for f in fields(Batch) if f.name != "events")
_EVENT_TENSORS = tuple(f.name for f in fields(EventBatch))
EVERY = 7  # the row-wise loader makes every 7th batch, from the whole span of label time


def main(argv: list[str]) -> int:
    """Plant, check, time and train; print the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks loader")
    parser.add_argument("--quick", action="store_true", help="less data, within a minute")
    quick = parser.parse_args(argv).quick
    with tempfile.TemporaryDirectory(prefix="headwater-bench-") as home:
        folder = child("benchmarks.loader:plant", home=home, quick=quick).value
        rates = child("benchmarks.loader:race", folder=folder, repeats=3 if quick else 5)
        steps = 8 if quick else 100
        waits = child("benchmarks.loader:train", threads=2, folder=folder, steps=steps)
    figures = {**rates.value, **waits.value}
    for name, value in figures.items():
        print(f"{name:24} {value:12.4g}")
    return report("loader", figures, TARGETS)


def race(folder: str, repeats: int) -> dict[str, float]:
    """Rows a processor second of both loaders over the same batches, in turns."""
    torch.set_num_threads(1)
    run = open_run(Path(folder))
    began = time.process_time()
    loader = Loader(run, batch_size=run.config.train.batch_size)
    ready_s = time.process_time() - began
    chosen = range(0, loader.num_batches - 1, EVERY)
    slow = row_batches(loader)
    for index in chosen[:: max(1, len(chosen) // 4)]:
        _require_equal(loader.batch(index), next(iter(slow(range(index, index + 1)))))
    ours, rowwise = [], []
    for turn in range(repeats):
        some = chosen[turn :: 3 * repeats]
        ours.append(_rate(loader.batch(i) for _ in range(4) for i in some))
        rowwise.append(_rate(slow(some)))
    return {
        "vs_rowwise": statistics.median(a / b for a, b in zip(ours, rowwise, strict=True)),
        "rows_per_s": statistics.median(ours),
        "rowwise_rows_per_s": statistics.median(rowwise),
        "ready_s": ready_s,
    }


def train(folder: str, steps: int) -> dict[str, float]:
    """Take the first steps of the stage `pretrain`; the part of their time spent waiting."""
    from pipeline.pretraining.pretrain import Training
    from pipeline.run.window import window_of

    run = open_run(Path(folder))
    torch.set_num_threads(run.config.train.threads)
    training = Training(run, window_of(run.config), "benchmark")
    began = time.monotonic()
    for _, batch in zip(range(steps), training._batches(), strict=False):
        training.step(batch)
    took = time.monotonic() - began
    return {
        "data_wait_frac": training.clock.waited / took,
        "train_rows_per_s": training.clock.rows / took,
    }


def plant(home: str, quick: bool, buckets: int = 2) -> str:
    """Make a planted run up to the mix in `home`; its folder."""
    from pipeline.mixing.ingest import ingest
    from pipeline.mixing.labels import labels
    from pipeline.mixing.land import land
    from pipeline.mixing.mix import mix
    from pipeline.mixing.timeline import timelines
    from pipeline.run.config import with_overrides
    from pipeline.run.presets import preset
    from pipeline.run.resolve import resolve

    sizes = {"source.planted.rows_per_day": 10_000, "source.planted.users": 1_250}
    overrides = {"window.num_buckets": buckets, **(sizes if quick else {})}
    config = with_overrides(preset(DAY, "small"), overrides)
    folder = resolve(config, Path(home))
    run = open_run(folder)
    stages = {"land": land, "ingest": ingest, "labels": labels, "timelines": timelines, "mix": mix}
    for name, stage in stages.items():
        for unit in units_of(run, name):
            stage(run, unit)
    return str(folder)


def _rate(batches: Iterable[Batch]) -> float:
    """Rows a second of processor time."""
    began = time.process_time()
    rows = sum(batch.num_rows for batch in batches)
    return rows / max(time.process_time() - began, 1e-9)


def _require_equal(ours: Batch, theirs: Batch) -> None:
    """`BenchmarkError` unless both loaders made the same batch."""
    pairs = [(getattr(ours, n), getattr(theirs, n)) for n in _TENSORS]
    for name, events in ours.events.items():
        same = theirs.events[name]
        pairs += [(getattr(events, n), getattr(same, n)) for n in _EVENT_TENSORS]
    if not all(torch.equal(a, b) and a.dtype == b.dtype for a, b in pairs):
        raise BenchmarkError("the row-wise loader makes other batches; both must stay the same")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
