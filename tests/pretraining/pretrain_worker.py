"""Runs trainings for test_pretrain.py: `pretrain_worker.py HOME`, one forked process each.

The libraries are loaded once, and every training still has a process of its own that may be
killed. Writes the exit statuses to result.json. (pytest's own process cannot fork: polars has
threads there.)
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from pretrain_world import FIRST, NEXT, prepare_run, tiny_run

from pipeline.pretraining.pretrain import Training, pretrain
from pipeline.run.config import Parent
from pipeline.run.manifest import need_manifest, write_json
from pipeline.run.paths import Run
from pipeline.run.window import window_of


def forked(work: Callable[[], object]) -> int:
    """Exit status of `work` in a process of its own."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def killed_at(run: Run, step: int) -> None:
    """Train with a checkpoint after every step, and die by SIGKILL at one."""
    inner = Training.step

    def dies(self: Training, batch: object) -> None:
        if self.engine.steps == step:
            os.kill(os.getpid(), signal.SIGKILL)
        inner(self, batch)
        self.save()

    Training.step = dies
    pretrain(run, "")


def parent_of(run: Run) -> Parent:
    return Parent(
        day=run.config.day,
        folder=str(run.folder.relative_to(run.home)),
        cut_us=window_of(run.config).cut,
        fingerprint=need_manifest(run.output("pretrain")).fingerprint,
    )


def main(home: Path) -> None:
    first = tiny_run(home, FIRST)
    statuses = [forked(lambda: prepare_run(first)), forked(lambda: pretrain(first, ""))]
    whole = first.folder / "whole"
    first.output("pretrain").rename(whole)
    shutil.rmtree(first.inside("checkpoints"))
    inside_second = json.loads((whole / "epoch" / "meta.json").read_text())["extra"]["steps"] + 1
    statuses += [forked(lambda: killed_at(first, 2))]
    statuses += [forked(lambda: killed_at(first, inside_second))]
    statuses += [int(first.output("pretrain").exists())]
    statuses += [forked(lambda: pretrain(first, ""))]
    following = tiny_run(home, NEXT, parent=parent_of(first))
    statuses += [forked(lambda: prepare_run(following)), forked(lambda: pretrain(following, ""))]
    folders = [str(r.folder) for r in (first, following)]
    write_json(home / "result.json", {"statuses": statuses, "folders": folders})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
