"""Stage pretrain on several hosts: `python -m pipeline hosts --run DIR --hosts 4 --host 0`.

The same command runs on every host, with its own number; or with `--hostfile FILE`, which says all
that. The run folder lies on storage that all hosts share. Host 0 holds the stage's lock and
publishes, as on one host; the others add their ranks and end with it.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from pipeline.pretraining.pretrain import asked, pretrain_by
from pipeline.run.codec import digest
from pipeline.run.errors import EXIT_OK, RetryError
from pipeline.run.hosts import PORT, Hosts, hosts_of
from pipeline.run.launch import started, stream
from pipeline.run.manifest import Outcome
from pipeline.run.paths import Run, open_run
from pipeline.run.ranks import ANSWER


def main(argv: list[str]) -> int:
    """Train as one of the hosts."""
    parser = argparse.ArgumentParser(prog="python -m pipeline hosts", description=__doc__)
    parser.add_argument("--run", required=True)
    parser.add_argument("--hostfile", type=Path, help="instead of --hosts, --host and --first")
    parser.add_argument("--name", default="", help="this host's in the hostfile, if not its own")
    parser.add_argument("--hosts", type=int, default=1)
    parser.add_argument("--host", type=int, default=0)
    parser.add_argument("--first", default="127.0.0.1", help="name of host 0")
    parser.add_argument("--port", type=int, default=PORT)
    given = parser.parse_args(argv)
    run = open_run(given.run)
    if given.hostfile:
        hosts = hosts_of(given.hostfile, given.name, given.port)
    else:
        hosts = Hosts(num=given.hosts, index=given.host, first=given.first, port=given.port)
    if hosts.index == 0:
        pretrain_by(run, lambda folder, config_hash: lead(run, hosts, folder, config_hash))
    else:
        join(run, hosts)
    return EXIT_OK


def lead(run: Run, hosts: Hosts, folder: Path, config_hash: str) -> Outcome:
    """Run the first host's ranks, of which the first fills `folder` and answers."""
    with tempfile.TemporaryDirectory(prefix="headwater-hosts-") as answers:
        _ranks(run, hosts, folder, config_hash, Path(answers))
        return Outcome(**json.loads((Path(answers) / ANSWER).read_text()))


def join(run: Run, hosts: Hosts) -> None:
    """Run this host's ranks, which fill no folder."""
    with tempfile.TemporaryDirectory(prefix="headwater-hosts-") as answers:
        _ranks(run, hosts, Path(answers), digest(asked(run)), Path(answers))


def _ranks(run: Run, hosts: Hosts, folder: Path, config_hash: str, answers: Path) -> None:
    arguments = ["--run", str(run.folder), "--folder", str(folder), "--config-hash", config_hash]
    ranks = run.config.train.ranks
    command = hosts.torchrun(ranks, "pipeline", "rank", *arguments, "--answers", str(answers))
    with started(command) as process:
        code, _ = stream(process, lambda line: print(line, file=sys.stderr))
    if code != EXIT_OK:
        # the cause may lie on any host, and a restart of all goes on from the last checkpoint
        raise RetryError(
            f"ranks of host {hosts.index} of {hosts.num} ended with exit code {code}; the lines "
            "above, or those of another host, tell why; start all hosts again to go on from there"
        )
