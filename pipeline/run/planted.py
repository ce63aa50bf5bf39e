"""The settings of the planted generator (docs/planted.md has the model behind them)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from model.config import require

PLANTED_SURFACES = ("feed", "reels", "stories")
SCALING_KINDS = ("view", "cart", "like")  # of the scaling variant's organic events
SCALING_HORIZON = 32  # events that its click logit reads, unless memory_events says otherwise
SCALING_DELAY_S = 60  # until an event is known, to the logit as to models
_SIZES = ("rows_per_day", "users", "ads", "categories", "finalists", "memory_events")


@dataclass(frozen=True, kw_only=True)
class PlantedConfig:
    """Size, seed and shape of the planted world.

    `shares`: part of the sessions on each of `PLANTED_SURFACES`, adding up to 1. `activity_sd`:
    standard deviation of the logarithm of a user's activity, which decides how long the longest
    histories are. `organic_per_user_day`: expected organic events of a user of mean activity.
    `exhausted`: part of the ads whose budget runs out on a day, at some hour; from then on they are
    no finalists. `variant`: the click logit of an ads log, or the one of scaling tests, made of
    events' orders, pairs and contexts. `memory_events`, `memory_days`: how many of a user's last
    events the logit of scaling tests reads, and in how many days an event's weight falls to 1/e.
    """

    seed: int = 0
    rows_per_day: int = 40_000
    users: int = 5_000
    ads: int = 400
    categories: int = 16
    organic_per_user_day: float = 5.0
    finalists: int = 20
    shares: tuple[float, ...] = (0.5, 0.3, 0.2)
    activity_sd: float = 0.9
    exhausted: float = 0.0
    variant: Literal["ads", "scaling"] = "ads"
    memory_events: int = SCALING_HORIZON
    memory_days: float = 1.0

    def __post_init__(self) -> None:
        for name in _SIZES:
            _require(getattr(self, name) > 0, name, "above 0", self, "use a positive number")
        organic = math.isfinite(self.organic_per_user_day) and self.organic_per_user_day >= 0
        _require(organic, "organic_per_user_day", "at least 0", self, "use 0.0 for none")
        each = f"{len(PLANTED_SURFACES)} long, one per surface of {list(PLANTED_SURFACES)}"
        _require(len(self.shares) == len(PLANTED_SURFACES), "shares", each, self, "name each")
        _require(
            min(self.shares) > 0, "shares", "above 0 each", self, "leave a surface out by name"
        )
        whole = math.isclose(sum(self.shares), 1.0, rel_tol=0.0, abs_tol=1e-9)
        _require(whole, "shares", "such that they add up to 1", self, "divide them by their sum")
        _require(0 < self.activity_sd <= 2, "activity_sd", "in (0, 2]", self, "use 0.9")
        _require(0 <= self.exhausted < 1, "exhausted", "in [0, 1)", self, "use 0.0 for no limits")
        _require(0 < self.memory_days <= 10, "memory_days", "in (0, 10]", self, "use 1.0")


def _require(holds: bool, name: str, rule: str, world: PlantedConfig, remedy: str) -> None:
    require(holds, f"source.planted.{name}", rule, getattr(world, name), remedy)
