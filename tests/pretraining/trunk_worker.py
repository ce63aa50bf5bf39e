"""Trains each baseline as the trunk on one mix, in one process: `trunk_worker.py HOME ARCH...`.

The first and the last one go on up to precompute. Prints the run folders as JSON.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from pretrain_world import FIRST, prepare_run, tiny_run

from pipeline.evaluation.evaluate import evaluate
from pipeline.loopfm.represent import represent
from pipeline.pretraining.pretrain import pretrain
from pipeline.run.paths import Run
from pipeline.solaris.candidates import predict
from pipeline.solaris.precompute import precompute


def run_of(home: Path, arch: str) -> Run:
    return tiny_run(home, FIRST, overrides={"model.arch": arch, "solaris.num_shards": 1})


def main(home: Path, archs: list[str]) -> None:
    runs = {arch: run_of(home, arch) for arch in archs}
    first, *others = runs.values()
    prepare_run(first)
    for run in others:
        for stage in ("ingest", "labels", "timelines", "mix"):
            shutil.copytree(first.output(stage), run.output(stage))
    for arch, run in runs.items():
        pretrain(run, "")
        evaluate(run, "")
        if arch in (archs[0], archs[-1]):
            represent(run, "")
            predict(run, "")
            precompute(run, "0")
    print(json.dumps({arch: str(run.folder) for arch, run in runs.items()}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
