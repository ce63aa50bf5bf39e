"""A rank for test_ranks_launch.py: `rank_probe.py WHAT FOLDER --answers DIR`; loads no torch."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from pipeline.run.errors import DataError, exit_code
from pipeline.run.ranks import answered

what, folder, answers = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[4])
rank = int(os.environ["RANK"])


def work() -> dict[str, object]:
    (folder / f"pid_{rank}").write_text(str(os.getpid()))
    while len(list(folder.glob("pid_*"))) < 2:
        time.sleep(0.01)
    if what == "fails" and rank == 1:
        raise DataError("the loss is nan at step 3; lower train.dense_lr")
    if what == "killed" and rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if what in ("fails", "killed"):
        raise RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer")
    if what == "waits":
        time.sleep(600)
    # torchrun's -u writes what print is given and its line end one by one: ranks would mix them
    sys.stdout.write(f"rank {rank} works\n")
    return {"ranks": os.environ["WORLD_SIZE"], "of": rank}


try:
    answered(answers, rank, work)
except (DataError, RuntimeError) as error:
    print(f"{type(error).__name__}: {error}", file=sys.stderr)
    sys.exit(exit_code(error))
