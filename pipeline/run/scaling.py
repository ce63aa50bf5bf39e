"""The ladder of the scaling law: which models are trained, and what each is called.

A point is one model: an architecture, a rung (its FLOPs per row), a seed, and the labels that it
learns from. Its name is the unit of the stage that trains it, so that a point is a task.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from typing import Literal

from model.config import ConfigError, require

Labels = Literal["hard", "soft"]
_UNIT = re.compile(
    r"(?P<arch>[a-z0-9_]+)-r(?P<rung>\d+)-(?P<labels>hard|soft)-(?P<kind>[st])(?P<number>\d+)"
)


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Learning rates of a family from a rung on, dense part and tables, for one kind of labels."""

    arch: str
    labels: Labels
    rung: int
    dense: float
    sparse: float


@dataclass(frozen=True, kw_only=True)
class ScalingConfig:
    """The ladder: families, MFLOP per row of each rung (forward), seeds, and how rates are tuned.

    `labels`: "hard" are clicks, "soft" the planted probabilities of a click, which separate what
    optimisation costs from label noise. `trials`: (dense, table) learning rates, tried by every
    family with every kind of labels at each of `tuned_rungs`; other rungs take rates between.
    A ladder with one trial is not tuned.
    `rates`: known ones, for families that are then not tuned (docs/scaling.json lists them).
    """

    archs: tuple[str, ...] = ("kunlun", "interformer", "wukong_pma", "wukong")
    mflops: tuple[float, ...] = (0.4, 0.93, 2.2, 5.1, 12.0)
    labels: tuple[Labels, ...] = ("hard", "soft")
    seeds: int = 3
    trials: tuple[tuple[float, float], ...] = (
        (3e-3, 3e-2),
        (1e-3, 3e-2),
        (1e-2, 3e-2),
        (3e-3, 1e-1),
    )
    tuned_rungs: tuple[int, ...] = (0, 2)
    rates: tuple[Rates, ...] = ()
    batch_size: int = 256

    def __post_init__(self) -> None:
        for name in ("archs", "mflops", "labels", "trials", "tuned_rungs"):
            _require(len(getattr(self, name)) > 0, name, "not empty", self, "name at least one")
        rising = all(a < b for a, b in itertools.pairwise((0.0, *self.mflops)))
        _require(rising, "mflops", "above 0 and rising", self, "sort them")
        _require(self.seeds > 0, "seeds", "above 0", self, "use 1")
        last = len(self.mflops) - 1
        there = all(0 <= r <= last for r in self.tuned_rungs)
        _require(there, "tuned_rungs", f"rungs of 0 to {last}", self, "choose among them")


@dataclass(frozen=True, kw_only=True)
class Point:
    """One model of the ladder; one with a `trial` is trained to choose the learning rates."""

    arch: str
    rung: int
    labels: Labels
    seed: int = 0
    trial: int | None = None

    @property
    def unit(self) -> str:
        """Its name: kunlun-r2-soft-s0, or kunlun-r2-soft-t3 for a trial."""
        last = f"s{self.seed}" if self.trial is None else f"t{self.trial}"
        return f"{self.arch}-r{self.rung}-{self.labels}-{last}"


def point_of(unit: str) -> Point:
    """The point of a unit's name."""
    found = _UNIT.fullmatch(unit)
    if found is None:
        raise ConfigError(f"unit must be like kunlun-r2-soft-s0, got {unit!r}; see scaling_units")
    labels: Labels = "hard" if found["labels"] == "hard" else "soft"
    number = int(found["number"])
    seed, trial = (number, None) if found["kind"] == "s" else (0, number)
    return Point(arch=found["arch"], rung=int(found["rung"]), labels=labels, seed=seed, trial=trial)


def trials(ladder: ScalingConfig) -> tuple[Point, ...]:
    """What is trained to choose learning rates, small rungs first."""
    known = {(r.arch, r.labels) for r in ladder.rates}
    each = itertools.product(
        sorted(set(ladder.tuned_rungs)), ladder.labels, ladder.archs, range(len(ladder.trials))
    )
    return tuple(
        Point(arch=arch, rung=rung, labels=labels, trial=trial)
        for rung, labels, arch, trial in each
        if (arch, labels) not in known and len(ladder.trials) > 1
    )


def points(ladder: ScalingConfig) -> tuple[Point, ...]:
    """The ladder, small rungs first, so that a ladder that is cut short is one of fewer rungs."""
    each = itertools.product(
        range(len(ladder.mflops)), range(ladder.seeds), ladder.labels, ladder.archs
    )
    return tuple(
        Point(arch=arch, rung=rung, labels=labels, seed=seed) for rung, seed, labels, arch in each
    )


def _require(holds: bool, name: str, rule: str, ladder: ScalingConfig, remedy: str) -> None:
    require(holds, f"scaling.{name}", rule, getattr(ladder, name), remedy)
