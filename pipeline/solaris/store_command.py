"""Look after the store: `python -m pipeline store (stats|verify|compact) (--run DIR | --home DIR)`.

`stats` prints counts, bytes, the generation and ages; `verify` walks every record and ends with 1
when it finds faults; `compact` deletes what has expired and what interrupted writers left.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Final

from pipeline.run.errors import EXIT_FAILED, EXIT_OK
from pipeline.solaris.lookup_command import time_us
from pipeline.solaris.stores import add_place, open_store, place_from
from pipeline.solaris.upkeep import faults, stats, verify

WAIT_S: Final = 30.0  # for a server, and for another writer


def main(argv: list[str]) -> int:
    """Do one of the three and print the outcome as JSON."""
    arguments = _parser().parse_args(argv)
    place, action = place_from(arguments), arguments.action
    code = EXIT_OK
    with open_store(place, write=action == "compact", wait_s=WAIT_S, timeout_s=WAIT_S) as store:
        if action == "stats":
            answer: dict[str, object] = stats(store)
        elif action == "verify":
            counts = verify(store)
            code = EXIT_FAILED if faults(counts) else EXIT_OK
            answer = {**counts, "faults": faults(counts)}
        else:
            now_us = time_us(arguments.at) if arguments.at else time.time_ns() // 1_000
            answer = {"removed": store.compact(now_us)}
    print(json.dumps(answer, sort_keys=True), file=sys.stdout)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m pipeline store", description=__doc__)
    parser.add_argument("action", choices=("stats", "verify", "compact"))
    add_place(parser)
    parser.add_argument("--at", default="", help="compact: expired at this UTC time; default: now")
    return parser
