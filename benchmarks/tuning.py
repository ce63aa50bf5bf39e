"""The same tuning for every arch: N trials over learning rates, width and dropout, from one design.

`python -m benchmarks.tuning --arch A --trials N [--record FILE]` trains on a planted world once
per trial, prints each trial as a line of JSON and, with `--record docs/experiments.md`, keeps the
arch's table there. Trial 0 has the config's own dials. Trials are scored on validation hours before
the cut, never on the holdout, and chosen by the NE against planted probabilities.

`--axes` sweeps what the design leaves alone instead, one setting at a time (benchmarks/_axes.py):
norms, initialisation, the tables' learning rate against the dense one, warm-up.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any, get_args

from benchmarks._axes import defaults, record_sweep, sweep
from benchmarks._experiments import replace_section, table
from benchmarks._measure import report
from benchmarks._trials import FULL, QUICK, World, error_of, prepared, tune
from model.config import Arch

COLUMNS = ("dense_lr", "sparse_lr", "width", "dropout", "mflop", "ne", "ne_true", "seconds")
ARCHS = get_args(Arch)


def main(argv: list[str]) -> int:
    """Run the trials and print them; the last line is JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tuning")
    parser.add_argument("--arch", action="append", choices=ARCHS, help="may be given again")
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0, help="of the world, the design, the weights")
    parser.add_argument("--quick", action="store_true", help="4,000 rows a day, two trials")
    parser.add_argument("--axes", action="store_true", help="sweep norms, sds, rates and warm-up")
    parser.add_argument("--seeds", type=int, default=2, help="of the weights, with --axes")
    parser.add_argument("--record", type=Path, help="file whose table of the arch is renewed")
    arguments = parser.parse_args(argv)
    world, trials = (QUICK, 2) if arguments.quick else (FULL, arguments.trials)
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="headwater-bench-") as home:
        base = prepared(Path(home), world, arguments.seed)
        if arguments.axes:
            swept = sweep(base, arguments.arch or ["kunlun"], arguments.seeds)
            if arguments.record:
                record_sweep(arguments.record, swept, world, arguments.quick)
            return report("tuning", {f"{arch}_default_ne": n for arch, n in defaults(swept)}, {})
        for arch in arguments.arch or ARCHS:
            found = []
            for trial in tune(base, arch, trials, arguments.seed):
                print(json.dumps(trial), flush=True)
                found.append(trial)
            figures |= _figures(arch, found)
            if arguments.record:
                _record(arguments.record, arch, found, world, arguments.seed)
    return report("tuning", figures, {})


def _figures(arch: str, trials: list[dict[str, Any]]) -> dict[str, float]:
    errors = [error_of(trial) for trial in trials]
    return {f"{arch}_default_ne": errors[0], f"{arch}_best_ne": min(errors)}


def _record(path: Path, arch: str, trials: list[dict[str, Any]], world: World, seed: int) -> None:
    best = min(trials, key=error_of)["trial"]
    rows = [
        [f"**{t['trial']}**" if t["trial"] == best else str(t["trial"])]
        + [str(t[name]) for name in COLUMNS]
        for t in trials
    ]
    first = trials[0]
    head = (
        f"### Tuning of {arch}\n\n"
        f"`python -m benchmarks.tuning --arch {arch} --trials {len(trials)} --seed {seed}`: "
        f"planted logs of {world.days} days at {world.rows_per_day} impressions, {world.users} "
        f"users and {world.ads} ads; {first['rows']} rows in one pass, the last "
        f"{first['validation_rows']} scored before they were trained on. Best in bold.\n\n"
    )
    replace_section(path, f"tuning {arch}", head + table(("trial", *COLUMNS), rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
