"""`python -m pipeline scaling`: the whole ladder from one command, some models at a time.

    nohup python -m pipeline scaling --size base --jobs 8 > scaling.log &

Stages up to the mix run first, then as many workers as `--jobs` says, each a process of its own. A
worker takes the next model that nobody trains, so that more of them may be started at any time
(`--worker DIR`) and a ladder that was cut short goes on when the command is given again. Small
rungs come first: a ladder that is cut short is one of fewer rungs.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.pretraining.scaling.sizing import ladder_of
from pipeline.run.config import RunConfig
from pipeline.run.errors import EXIT_OK, DataError, RetryError
from pipeline.run.launch import pipeline_command, started, stream
from pipeline.run.lock import locked
from pipeline.run.manifest import Manifest, read_manifest
from pipeline.run.paths import Run, open_run
from pipeline.run.resolve import config_of, request_parser, resolve
from pipeline.run.runs import SCALING_LAW, units_of
from pipeline.run.scaling import Point, points, trials

log = logging.getLogger(__name__)
MODELS = ("scaling_tune", "scaling_point")
DAY = "2026-11-29"  # planted days are alike
LINE_EVERY_S, LOOK_EVERY_S = 30.0, 2.0


def main(argv: list[str]) -> int:
    """Run what is left of the ladder; the run folder is the last line of stdout."""
    parser = request_parser("python -m pipeline scaling", day_required=False)
    parser.set_defaults(day=DAY, source="scaling")
    parser.add_argument("--quick", action="store_true", help="two rungs, one seed, no trials")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--worker", type=Path, help="only train what is left of this run folder")
    arguments = parser.parse_args(argv)
    if arguments.worker:
        work(open_run(arguments.worker))
        return EXIT_OK
    config = config_of(arguments)
    run = open_run(resolve(shortened(config) if arguments.quick else config))
    first = SCALING_LAW.index(MODELS[0])
    for stage in SCALING_LAW[:first]:
        _stage(run, stage)
    train_all(run, max(1, arguments.jobs))
    for stage in SCALING_LAW[first + len(MODELS) :]:
        _stage(run, stage)
    print(run.folder)
    return EXIT_OK


def shortened(config: RunConfig) -> RunConfig:
    """The two smallest rungs, with one seed, at rates that are known or the first trial's."""
    ladder = ladder_of(config)
    quick = replace(
        ladder, mflops=ladder.mflops[:2], seeds=1, trials=ladder.trials[:1], tuned_rungs=(0,)
    )
    return replace(config, scaling=quick)


def train_all(run: Run, jobs: int) -> None:
    """Let `jobs` workers train what is left, and say how far they are; `DataError` if one fails."""
    command = pipeline_command("scaling", "--worker", str(run.folder))
    with ThreadPoolExecutor(jobs) as pool:
        workers = [pool.submit(_followed, command, f"worker {n}") for n in range(jobs)]
        _follow(run, workers)
    for worker in workers:
        worker.result()


def work(run: Run) -> None:
    """Train one model after the other until none is left that nobody else is training."""
    from pipeline.pretraining.scaling import point as stages

    models = planned(run)
    while models:
        left = [task for task in models if not _try(run, *task, getattr(stages, task[0]))]
        if len(left) == len(models):
            time.sleep(LOOK_EVERY_S)  # others are at work on what is missing
        models = left


def planned(run: Run) -> list[tuple[str, Point]]:
    """Trials and points with their stages, in the order in which they are trained."""
    ladder = ladder_of(run.config)
    return [
        *((MODELS[0], point) for point in trials(ladder)),
        *((MODELS[1], point) for point in points(ladder)),
    ]


def _try(run: Run, stage: str, point: Point, train: Callable[[Run, str], Manifest]) -> bool:
    """Train a model unless somebody does or its trials are not over; whether it is finished."""
    if _finished(run, stage, point):
        return True
    if stage == MODELS[1] and not _tuned(run, point):
        return False
    try:
        with locked(run.output(stage, point.unit).with_suffix(".claim"), wait_s=0.0):
            train(run, point.unit)
    except RetryError:
        return False
    return True


def _tuned(run: Run, point: Point) -> bool:
    mine = [t for t in trials(ladder_of(run.config)) if (t.arch, t.labels) == _family(point)]
    return all(_finished(run, MODELS[0], t) for t in mine)


def _family(point: Point) -> tuple[str, str]:
    return point.arch, point.labels


def _finished(run: Run, stage: str, point: Point) -> bool:
    return read_manifest(run.output(stage, point.unit), missing_ok=True) is not None


def _stage(run: Run, stage: str) -> None:
    """Every unit of a stage, as Airflow would run it."""
    for unit in units_of(run, stage):
        command = pipeline_command(stage, "--run", str(run.folder))
        _followed([*command, "--unit", unit] if unit else command, f"{stage} {unit}".strip())


def _followed(command: list[str], what: str) -> None:
    with started(command) as process:
        code, last = stream(process, lambda line: log.info("%s: %s", what, line))
    if code != EXIT_OK:
        raise DataError(f"{what} ended with exit code {code}: {last}; mend it, then run this again")


def _follow(run: Run, workers: list[Future[Any]]) -> None:
    """A line now and then until all workers have ended: models, time left, the newest one."""
    models, began = planned(run), time.monotonic()
    cost = {task: ladder_of(run.config).mflops[task[1].rung] for task in models}
    before = {task for task in models if _finished(run, *task)}
    while wait(workers, timeout=LINE_EVERY_S).not_done:
        done = {task for task in models if _finished(run, *task)}
        spent = sum(cost[task] for task in done - before)
        ahead = sum(cost[task] for task in models if task not in done)
        eta = f"{(time.monotonic() - began) * ahead / spent / 60:.0f} min" if spent else "unknown"
        print(f"{len(done)} of {len(models)} models, time left {eta}", file=sys.stderr, flush=True)
