"""Several hosts: the command of each, and hostfiles that are right or wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch.distributed.run import get_args_parser

from pipeline.run.errors import ConfigError
from pipeline.run.hosts import Hosts, hosts_of

SHIPPED = Path(__file__).parents[2] / "deploy" / "hostfile"


def test_every_host_has_its_share_of_the_ranks():
    hosts = Hosts(num=4, index=2, first="node-0", port=29_500)
    command = hosts.torchrun(32, "pipeline", "rank", "--run", "runs/1")
    given = get_args_parser().parse_args(command[3:])
    assert (given.nnodes, given.node_rank, given.nproc_per_node) == ("4", 2, "8")
    assert (given.master_addr, given.master_port) == ("node-0", 29_500)
    assert (given.rdzv_backend, given.standalone) == ("static", False)
    assert (given.training_script, given.training_script_args[0]) == ("pipeline", "rank")


def test_ranks_that_no_hosts_share_are_refused():
    with pytest.raises(ConfigError, match=r"train\.ranks must be a multiple of the 4 hosts, got 6"):
        Hosts(num=4, index=0, first="a").torchrun(6, "pipeline")


@pytest.mark.parametrize(
    ("num", "index", "first", "message"),
    [
        (0, 0, "a", "hosts must be at least 1, got 0; use 1"),
        (2, 2, "a", "host must be from 0 to 1, got 2; count hosts from 0"),
        (2, 0, "", "first must be a host's name, got ''; name host number 0"),
    ],
)
def test_wrong_hosts_are_refused(num, index, first, message):
    with pytest.raises(ConfigError, match=message):
        Hosts(num=num, index=index, first=first)


def test_a_hostfile_numbers_its_hosts():
    assert hosts_of(SHIPPED, "worker-1") == Hosts(num=2, index=1, first="worker-0")


WRONG = {
    "slots": ("a slots=8\nb\n", r"line 2 must be `name slots=8` .*got 'b'; mend it"),
    "twice": ("a slots=8\na slots=8\n", "line 2 must be .* a name of its own"),
    "uneven": ("a slots=8\nb slots=4\n", "as many slots, got .*make them equal"),
    "stranger": ("b slots=8  # one\n", r"host must be one of .*got 'a'; choose among \['b'\]"),
}


@pytest.mark.parametrize(("text", "message"), WRONG.values(), ids=WRONG)
def test_a_wrong_hostfile_is_refused(tmp_path, text, message):
    path = tmp_path / "hostfile"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        hosts_of(path, "a")


def test_a_missing_hostfile_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="is not a hostfile; write a line"):
        hosts_of(tmp_path / "none")
