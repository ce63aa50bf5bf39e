"""A tiny ladder for test_scaling.py: `scaling_worker.py HOME`; one worker of it is killed.

Writes what came of it to result.json (see pretrain_worker.py for why it is a process of its own).
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from pretrain_worker import forked
from pretrain_world import FIRST, prepare_run

from model.parallel import Engine
from pipeline.evaluation.scaling import scaling_fit
from pipeline.mixing.loader import Loader
from pipeline.pretraining.scaling.command import work
from pipeline.pretraining.scaling.point import scaling_point
from pipeline.run.config import with_overrides
from pipeline.run.manifest import need_manifest, write_json
from pipeline.run.paths import Run, open_run
from pipeline.run.presets import preset
from pipeline.run.resolve import resolve

OVERRIDES = {
    "source.planted.rows_per_day": 250,
    "source.planted.users": 40,
    "scaling.archs": ["kunlun", "interformer"],
    "scaling.labels": ["hard"],
    "scaling.trials": [[3e-3, 3e-2], [1e-2, 1e-1]],
    "scaling.batch_size": 128,
}


def killed_in_a_point(run: Run) -> None:
    """Work until the second step of the first point, and die there by SIGKILL."""
    inner, seen = Engine.step, [0]

    def dies(self: Engine) -> None:
        if run.output("scaling_point").is_dir():
            seen[0] += 1
            if seen[0] == 2:
                os.kill(os.getpid(), signal.SIGKILL)
        inner(self)

    Engine.step = dies  # type: ignore[method-assign]
    work(run)


def files(run: Run) -> dict[str, list[int]]:
    """When each result was written."""
    found = sorted(run.folder.glob("scaling_*/*/result.json"))
    return {str(p.relative_to(run.folder)): [p.stat().st_mtime_ns] for p in found}


def main(home: Path) -> None:
    config = with_overrides(preset(FIRST, "smoke", "scaling"), OVERRIDES)
    run = open_run(resolve(config, home))
    statuses = [forked(lambda: prepare_run(run)), forked(lambda: killed_in_a_point(run))]
    after_kill = files(run)
    statuses += [forked(lambda: work(run))]
    after_all = files(run)
    statuses += [forked(lambda: work(run))]
    unit = "kunlun-r0-hard-s0"
    first = need_manifest(run.output("scaling_point", unit)).fingerprint
    run.output("scaling_point", unit).rename(home / "aside")
    statuses += [forked(lambda: scaling_point(run, unit)), forked(lambda: scaling_fit(run))]
    again = need_manifest(run.output("scaling_point", unit)).fingerprint
    events = Loader(run, "train", batch_size=512).batch(0).events["organic"]
    result = {
        "folder": str(run.folder),
        "statuses": statuses,
        "after_kill": after_kill,
        "after_all": after_all,
        "after_rerun": files(run),
        "fingerprints": [first, again],
        "actions": sorted(set(events.ids_EA[:, 1].tolist())),
        "longest": int(events.lengths_B.max()),
    }
    write_json(home / "result.json", result)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
