"""Several hosts as one training: who they are, and the torchrun command of each.

Every host runs the same command and knows its number. Neighbouring numbers are neighbouring hosts,
so that ranks lie where the planner laid them; torchrun's static rendezvous keeps the numbers, which
its elastic one does not.
"""

from __future__ import annotations

import re
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

from pipeline.run.errors import ConfigError, require

PORT = 29_400
_LINE = re.compile(r"(\S+)\s+slots=(\d+)$")


@dataclass(frozen=True, kw_only=True)
class Hosts:
    """So many hosts, of which this is number `index`; ranks meet at `first`, which is number 0."""

    num: int
    index: int
    first: str
    port: int = PORT

    def __post_init__(self) -> None:
        require(self.num >= 1, "hosts", "at least 1", self.num, "use 1")
        inside = 0 <= self.index < self.num
        require(inside, "host", f"from 0 to {self.num - 1}", self.index, "count hosts from 0")
        require(self.first != "", "first", "a host's name", self.first, "name host number 0")

    def torchrun(self, num_ranks: int, module: str, *arguments: str) -> list[str]:
        """`python -m module <arguments>` as this host's share of all ranks."""
        require(
            num_ranks % self.num == 0,
            "train.ranks",
            f"a multiple of the {self.num} hosts",
            num_ranks,
            f"use {self.num * max(1, num_ranks // self.num)}",
        )
        meet = ["--nnodes", str(self.num), "--node-rank", str(self.index)]
        meet += ["--master-addr", self.first, "--master-port", str(self.port)]
        share = ["--nproc-per-node", str(num_ranks // self.num)]
        run = ["-m", "--", module, *arguments]
        return [sys.executable, "-m", "torch.distributed.run", *meet, *share, *run]


def hosts_of(path: Path, name: str = "", port: int = PORT) -> Hosts:
    """The hosts of a DeepSpeed hostfile (`name slots=N` a line); `name`: this one, if not its own.

    `ConfigError` names the file, the line and the remedy.
    """
    slots: dict[str, int] = {}
    try:
        lines = path.read_text().splitlines()
    except OSError:
        raise ConfigError(f"{path} is not a hostfile; write a line `name slots=8` a host") from None
    for number, line in enumerate(lines, start=1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        found = _LINE.match(text)
        if not found or found[1] in slots:
            raise ConfigError(
                f"{path} line {number} must be `name slots=8` with a name of its own, "
                f"got {text!r}; mend it"
            )
        slots[found[1]] = int(found[2])
    name = name or socket.gethostname()
    if name not in slots:
        raise ConfigError(f"host must be one of {path}, got {name!r}; choose among {list(slots)}")
    if len(set(slots.values())) > 1:
        raise ConfigError(
            f"{path} must give every host as many slots, got {slots}; make them equal"
        )
    names = list(slots)
    return Hosts(num=len(names), index=names.index(name), first=names[0], port=port)
