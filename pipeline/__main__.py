"""`python -m pipeline <stage> --run DIR [--unit U]`: the table of stages, and what runs them.

Airflow runs these very commands; so do you. Other commands: resolve (makes a run folder),
fetch, doctor, daily, servers, scaling, lookup, store, export, drift, probe, plan, hosts. Exit
codes: 0 done, 64 usage, 65 bad data or config (no retry can help), 75 temporary trouble (retry),
1 anything else.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline.run.errors import EXIT_FAILED, EXIT_OK, exit_code
from pipeline.run.paths import open_run
from pipeline.run.process import prepare

# name -> (module, function, what a unit is); every function is f(run, unit) -> Manifest
STAGES: dict[str, tuple[str, str, str]] = {
    "land": ("pipeline.mixing.land", "land", ""),
    "ingest": ("pipeline.mixing.ingest", "ingest", "surface, or rest"),
    "contracts": ("pipeline.mixing.contracts", "contracts", ""),
    "labels": ("pipeline.mixing.labels", "labels", ""),
    "timelines": ("pipeline.mixing.timeline", "timelines", "bucket group"),
    "mix": ("pipeline.mixing.mix", "mix", ""),
    "mixture_contract": ("pipeline.mixing.contracts", "mixture_contract", ""),
    "scaling_tune": ("pipeline.pretraining.scaling.point", "scaling_tune", "trial"),
    "scaling_point": ("pipeline.pretraining.scaling.point", "scaling_point", "point"),
    "scaling_fit": ("pipeline.evaluation.scaling", "scaling_fit", ""),
    "pretrain": ("pipeline.pretraining.pretrain", "pretrain", ""),
    "evaluate": ("pipeline.evaluation.evaluate", "evaluate", ""),
    "promote": ("pipeline.evaluation.promote", "promote", ""),
    "represent": ("pipeline.loopfm.represent", "represent", ""),
    "representation_contract": ("pipeline.loopfm.contracts", "representation_contract", ""),
    "predict": ("pipeline.solaris.candidates", "predict", ""),
    "precompute": ("pipeline.solaris.precompute", "precompute", "shard"),
    "verify": ("pipeline.solaris.verify", "verify", ""),
    "publish": ("pipeline.solaris.publish", "publish", ""),
    "replay": ("pipeline.solaris.replay", "replay", ""),
    "as_served": ("pipeline.solaris.as_served", "as_served", ""),
    "transfer": ("pipeline.loopfm.transfer", "transfer", "surface"),
    "evaluate_students": ("pipeline.evaluation.students", "evaluate_students", ""),
    "promote_students": ("pipeline.evaluation.students", "promote_students", ""),
    "track": ("pipeline.evaluation.tracking", "track", ""),
    "report": ("pipeline.evaluation.report", "report", ""),
}
# commands with arguments of their own: name -> (module, function(argv) -> exit code)
COMMANDS: dict[str, tuple[str, str]] = {
    "resolve": ("pipeline.run.resolve", "main"),
    "fetch": ("pipeline.mixing.sources.fetch", "main"),
    "doctor": ("pipeline.doctor", "main"),
    "daily": ("pipeline.run.daily", "main"),
    "servers": ("pipeline.run.servers", "main"),
    "scaling": ("pipeline.pretraining.scaling.command", "main"),
    "lookup": ("pipeline.solaris.lookup_command", "main"),
    "store": ("pipeline.solaris.store_command", "main"),
    "export": ("pipeline.loopfm.export", "main"),
    "drift": ("pipeline.loopfm.drift", "main"),
    "probe": ("pipeline.pretraining.probe", "main"),
    "hosts": ("pipeline.pretraining.hosts", "main"),
    "plan": ("pipeline.pretraining.planner.command", "main"),
    "rank": ("pipeline.pretraining.rank", "main"),
}


def main(argv: list[str]) -> int:
    """Run one stage or command and return its exit code."""
    prepare()
    logging.basicConfig(
        level=logging.WARNING, format="%(asctime)s %(name)s: %(message)s", stream=sys.stderr
    )
    for ours in ("pipeline", "model", "data_contracts", "kernels"):
        logging.getLogger(ours).setLevel(logging.INFO)
    # where set-up built DeepSpeed's op; elsewhere the first training would compile it again
    os.environ.setdefault("TORCH_EXTENSIONS_DIR", str(Path(sys.prefix) / "torch_extensions"))
    try:
        if argv and argv[0] in COMMANDS:
            return _load(*COMMANDS[argv[0]])(argv[1:])
        arguments = _parser().parse_args(argv)
        module, function, unit = STAGES[arguments.stage]
        if unit and not arguments.unit:
            _parser().error(f"{arguments.stage} needs --unit ({unit})")
        run = open_run(arguments.run)
        _load(module, function)(run, arguments.unit)
    except Exception as error:  # the one place that turns errors into exit codes
        code = exit_code(error)
        if code == EXIT_FAILED:
            logging.getLogger("pipeline").exception("failed")
        else:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return code
    return EXIT_OK


def _load(module: str, function: str) -> Callable[..., Any]:
    return getattr(importlib.import_module(module), function)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m pipeline", description=__doc__)
    parser.add_argument(
        "stage",
        choices=sorted(STAGES),
        metavar="stage",
        help=f"one of {', '.join(STAGES)}; or a command: {', '.join(COMMANDS)}",
    )
    parser.add_argument("--run", required=True, help="the run folder, as printed by resolve")
    parser.add_argument("--unit", default="", help="surface, bucket group or shard")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
