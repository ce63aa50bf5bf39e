"""One rank of a training: what torchrun starts; people run `python -m pipeline pretrain`."""

from __future__ import annotations

import argparse
import logging
import os
from dataclasses import asdict
from pathlib import Path

from pipeline.run.errors import EXIT_OK
from pipeline.run.paths import open_run
from pipeline.run.ranks import answered


def main(argv: list[str]) -> int:
    """Train as the rank that the environment names; rank 0 fills the folder and answers."""
    parser = argparse.ArgumentParser(prog="python -m pipeline rank", description=__doc__)
    parser.add_argument("--run", required=True)
    parser.add_argument("--folder", type=Path, required=True, help="what the first rank fills")
    parser.add_argument("--config-hash", required=True)
    parser.add_argument("--answers", type=Path, required=True)
    arguments = parser.parse_args(argv)
    rank = int(os.environ["RANK"])
    if rank > 0:  # one voice is enough; warnings of others are heard
        for ours in ("pipeline", "model"):
            logging.getLogger(ours).setLevel(logging.WARNING)

    def work() -> dict[str, object]:
        from pipeline.pretraining.pretrain import train

        return asdict(train(open_run(arguments.run), arguments.folder, arguments.config_hash))

    answered(arguments.answers, rank, work)
    return EXIT_OK
