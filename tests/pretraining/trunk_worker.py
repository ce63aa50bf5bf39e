"""Runs the chain up to precompute with each baseline as the trunk: `trunk_worker.py HOME ARCH...`.

One process, so that the libraries are loaded once. Prints the run folders as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pretrain_world import FIRST, prepare_run, tiny_run

from pipeline.evaluation.evaluate import evaluate
from pipeline.loopfm.represent import represent
from pipeline.pretraining.pretrain import pretrain
from pipeline.solaris.candidates import predict
from pipeline.solaris.precompute import precompute


def main(home: Path, archs: list[str]) -> None:
    folders = {}
    for arch in archs:
        run = tiny_run(home, FIRST, overrides={"model.arch": arch, "solaris.num_shards": 1})
        prepare_run(run)
        for stage in (pretrain, evaluate, represent, predict):
            stage(run, "")
        precompute(run, "0")
        folders[arch] = str(run.folder)
    print(json.dumps(folders))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
