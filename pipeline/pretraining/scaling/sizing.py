"""Configs of the ladder: every family at the same FLOPs per row, by the same dials.

Layers follow from the rung (one fewer where that is the only fit), and the widths are those whose
FLOPs, at the true lengths of the run's histories, come nearest to it. Embeddings keep their size:
they cost no FLOPs, and rungs are to differ in what is computed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import cast

import numpy as np
from numpy.typing import NDArray

from model.config import Arch
from model.flops import flops_per_row
from pipeline.run.config import RunConfig
from pipeline.run.errors import ConfigError
from pipeline.run.scaling import Point, ScalingConfig

Lengths = Mapping[str, NDArray[np.int64]]  # visible events of some rows, by event type
WIDTHS = range(4, 513, 4)
WIDE = 48  # from this width on there are twice the heads, summary tokens and seeds
HIDDEN = (2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 7.0, 8.0)  # of the width: hidden layers of networks
FARTHEST = 0.15  # how far a rung may be missed, as a share of its FLOPs


def ladder_of(config: RunConfig) -> ScalingConfig:
    """The run's ladder; `ConfigError` when it is a run of another kind."""
    if config.scaling is None:
        raise ConfigError(
            f"a run of source {config.source.name!r} has no ladder; resolve with --source scaling"
        )
    return config.scaling


def sized(config: RunConfig, point: Point, lengths: Lengths) -> RunConfig:
    """The run's config with the model of a point; seed and learning rates are the caller's."""
    target = 1e6 * ladder_of(config).mflops[point.rung]
    layers = 2 if target < 1.5e6 else 3 if target < 8e6 else 4
    best = _nearest(config, point.arch, layers, target, lengths)
    if _off(best, target, lengths) > FARTHEST:  # the widths of this family are too far apart
        best = _nearest(config, point.arch, max(1, layers - 1), target, lengths)
    if _off(best, target, lengths) > FARTHEST:
        raise ConfigError(
            f"scaling.mflops of rung {point.rung} must be within reach of {point.arch}, got "
            f"{target / 1e6:.3g}, and its nearest size has {flops(best, lengths) / 1e6:.3g}; "
            "choose another rung"
        )
    return best


def _nearest(
    config: RunConfig, arch: str, layers: int, target: float, lengths: Lengths
) -> RunConfig:
    """The size with so many layers that comes nearest to a rung."""
    # a head's width is even, for rotations turn pairs
    widths = [w for w in WIDTHS if w % (2 * _heads(w)) == 0]
    usual = [_at(config, arch, width, layers, 4 * width) for width in widths]
    near = sorted(usual, key=lambda found: _off(found, target, lengths))[:3]
    tried = [
        _at(config, arch, at.model.width, layers, round(at.model.width * share))
        for at in near
        for share in HIDDEN
    ]
    return min(tried, key=lambda found: _miss(found, target, lengths))


def flops(config: RunConfig, lengths: Lengths) -> float:
    """Mean forward FLOPs per row."""
    each = flops_per_row(
        config.model, config.features, len(config.objectives), lengths, len(config.surfaces)
    )
    return float(np.mean(each))


def _off(found: RunConfig, target: float, lengths: Lengths) -> float:
    """How far a size is from its rung, as a share."""
    return abs(flops(found, lengths) / target - 1)


def _miss(found: RunConfig, target: float, lengths: Lengths) -> float:
    """The same, and a little for an unusual shape: the usual one wins where both are near."""
    shape = abs(math.log2(found.model.mlp_width / (4 * found.model.width)))
    return _off(found, target, lengths) + 0.03 * shape


def _heads(width: int) -> int:
    return 4 if width >= WIDE else 2


def _at(config: RunConfig, arch: str, width: int, layers: int, hidden: int) -> RunConfig:
    """All dials at a width; a family reads those that it has."""
    heads = _heads(width)
    model = replace(
        config.model,
        arch=cast(Arch, arch),
        width=width,
        layers=layers,
        heads=heads,
        summary_tokens=2 * heads,
        seeds=4 * heads,
        fm_rank=4 * heads,
        mlp_width=hidden,
        head_width=max(32, width),
    )
    events = tuple(replace(e, width=width, heads=heads) for e in config.features.events)
    return replace(config, model=model, features=replace(config.features, events=events))
