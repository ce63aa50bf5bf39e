"""Activation checkpointing with a budget per region: backward computes again what was not kept.

A region's budget is the share of its modules that keep what autograd saves inside them; the others
keep their inputs and run a second time in backward. Those that give up theirs come first in the
stack: the last ones are needed first in backward, and freed first. Weights, outputs and gradients
stay the same to the bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any, Final

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from model.budgets import Keep
from model.config import require
from model.gdpa import PersonalizedFeedForward
from model.heads import Heads
from model.interaction import GlobalInteraction
from model.pooling import PlainPooling, SeedPooling
from model.sequence import SequenceAttention

REGIONS: Final[dict[str, tuple[type[nn.Module], ...]]] = {
    "attention": (PersonalizedFeedForward, SeedPooling, PlainPooling, SequenceAttention),
    "interaction": (GlobalInteraction,),
    "heads": (Heads,),
}


def give_up(dense: nn.Module, keep: Keep) -> dict[str, tuple[int, int]]:
    """Make modules of a dense part run again in backward; per region, how many of how many do.

    `ConfigError` for a budget of a region that the model does not have.
    """
    given = {}
    found = regions_of(dense)
    for region in REGIONS:
        modules = found.get(region, [])
        share = getattr(keep, region)
        require(
            share == 1 or len(modules) > 0,
            f"train.keep.{region}",
            "1.0 for a model without modules of that region",
            share,
            "leave it out",
        )
        count = len(modules) - round(share * len(modules))
        for module in modules[:count]:
            module.forward = partial(checkpoint, module.forward, use_reentrant=False)  # type: ignore[method-assign]
        given[region] = (count, len(modules))
    return given


def regions_of(dense: nn.Module) -> dict[str, list[nn.Module]]:
    """The modules of each region that a model has, in the order of the stack."""
    found = {
        region: [module for module in dense.modules() if isinstance(module, kinds)]
        for region, kinds in REGIONS.items()
    }
    return {region: modules for region, modules in found.items() if modules}


def recomputed(dense: nn.Module) -> list[nn.Module]:
    """The modules that run again in backward."""
    return [module for module in dense.modules() if "forward" in vars(module)]


def tensors_in(value: Any) -> Iterator[Tensor]:
    """All tensors of nested tuples, lists, dicts and dataclasses: what a module is given."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from tensors_in(part)
    elif is_dataclass(value):
        for field in fields(value):
            yield from tensors_in(getattr(value, field.name))


def keep_note(given: dict[str, tuple[int, int]]) -> str:
    """What is computed again, for a log."""
    again = [f"{count} of {of} in {region}" for region, (count, of) in given.items() if count]
    return ", ".join(again) or "nothing"
