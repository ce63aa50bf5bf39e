"""Rows a second that a training makes on both cores: `python -m benchmarks._peers.large CALL`.

Batches after the first few alone are timed: neither start nor last checkpoint, which a pass of
days has once. Ranks share each batch; the rows of a training on two of them are those of both.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks._peers.ours import Entry, forked, resized
from model.ranks import any_rank, barrier
from model.snapshot import num_parameters
from pipeline.pretraining.pretrain import Training
from pipeline.run.config import with_overrides
from pipeline.run.manifest import write_json
from pipeline.run.paths import Run, open_run
from pipeline.run.process import prepare
from pipeline.run.ranks import answered, run_ranks
from pipeline.run.window import window_of

WARM = 3


def play(num_ranks: int, **arguments: Any) -> dict[str, Any]:
    """Train the entry of these arguments; its pace, which predicts nothing."""
    entry = Entry(**arguments)
    run = forked(open_run(entry.run), entry)
    try:
        if num_ranks == 1:
            return pace(run, entry)
        call = Path(f"{entry.answer}.call.json")
        write_json(call, {"folder": str(run.folder), "num_ranks": num_ranks, "entry": arguments})
        found: dict[str, Any] = run_ranks(num_ranks, "benchmarks._peers.large", str(call))
        return found
    finally:
        shutil.rmtree(run.folder)


def pace(run: Run, entry: Entry) -> dict[str, Any]:
    """Train on what the entry names; rows of all ranks and seconds after the first batches."""
    torch.set_num_threads(entry.num_threads)
    window = window_of(run.config)
    window = replace(
        window, train_begin=entry.begin_us, students_begin=entry.begin_us, cut=entry.end_us
    )
    training = Training(run, window, "peers")
    batches = training._batches()
    for _ in range(WARM):
        training.step(next(batches))
    barrier()
    before, began, processor = training.meter.rows, time.monotonic(), time.process_time()
    for batch in batches:
        training.step(batch)
    barrier()
    return {
        "rows": training.meter.rows - before,
        "wall_s": time.monotonic() - began,
        "processor_s": time.process_time() - processor,
        "parameters": num_parameters(training.engine.export()),
    }


def main(path: Path, answers: Path) -> None:
    """Train as the rank that the environment names."""
    call = json.loads(path.read_text())
    entry = Entry(**call["entry"])
    run = Run(folder=Path(call["folder"]), config=resized(open_run(entry.run).config, entry))
    settings = {
        "train.ranks": call["num_ranks"],
        "train.batch_size": entry.batch_size * call["num_ranks"],
    }
    run = replace(run, config=with_overrides(run.config, settings))
    answered(answers, int(os.environ["RANK"]), lambda: pace(run, entry))
    any_rank(False)  # leave together


if __name__ == "__main__":
    prepare()
    main(Path(sys.argv[1]), Path(sys.argv[3]))
