"""The ranks of a training: one gloo group, and what they tell each other. One rank says nothing."""

from __future__ import annotations

import os
from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from model.pieces import Place


def join_process_group() -> None:
    """Join the launcher's gloo group; without a launcher, a group of this process alone."""
    if dist.is_initialized():
        return
    if "WORLD_SIZE" in os.environ and "MASTER_ADDR" in os.environ:
        dist.init_process_group("gloo")
        return
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ.setdefault("LOCAL_RANK", "0")
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)


def rank() -> int:
    """This process among the ranks; 0 before it joined any."""
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    """How many ranks train together; 1 before this process joined any."""
    return dist.get_world_size() if dist.is_initialized() else 1


def total(value: Tensor) -> Tensor:
    """The sum over all ranks, in place of `value`."""
    if world_size() > 1:
        dist.all_reduce(value)
    return value


def any_rank(flag: bool) -> bool:
    """Whether `flag` is set on any rank: what all ranks then do together."""
    return bool(total(torch.tensor(float(flag))))


def barrier() -> None:
    """Wait for all ranks."""
    if world_size() > 1:
        dist.barrier()


def gathered(pieces: Mapping[str, Tensor], places: Mapping[str, Place]) -> dict[str, Tensor]:
    """Whole tensors on every rank, from the pieces that the ranks hold.

    `places` names every tensor on every rank, `pieces` those that this one has a piece of.
    """
    found = {}
    for name, place in places.items():
        if world_size() == 1:
            found[name] = pieces[name].view(place.whole)
            continue
        whole = torch.zeros(place.whole)
        if name in pieces and place.mine:
            place.within(whole).copy_(pieces[name])
        dist.all_reduce(whole)  # every element comes from one rank: the others add nothing
        found[name] = whole
    return found
