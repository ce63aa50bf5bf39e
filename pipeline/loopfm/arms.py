"""The arms of a transfer table: what each student learns from besides labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from pipeline.run.config import RunConfig
from pipeline.run.errors import ConfigError

Loop = Literal["none", "history", "shuffled", "own"]
FIELDS: Final = ("exact", "neighbours", "user")  # of what a store serves: pair, pair, user


@dataclass(frozen=True, kw_only=True)
class Arm:
    """`distill`: soft labels; `raw`: the events and match counts; `loop`: representations.

    `shuffled` is the placebo: every event has the representation of another one. `own` is the
    bound that serving cannot have: the representation of the impression itself. `served`: fields of
    precomputed vectors that are read; `shuffled_served` gives every row those of another one.
    """

    name: str
    distill: bool = False
    raw: bool = False
    loop: Loop = "none"
    served: tuple[str, ...] = ()
    shuffled_served: bool = False

    @property
    def sequence(self) -> bool:
        """Whether the student reads representations."""
        return self.loop != "none"


ALL_ARMS: Final = (
    Arm(name="none"),
    Arm(name="kd", distill=True),
    Arm(name="raw", raw=True),
    Arm(name="loopfm", loop="history"),
    Arm(name="kd_loopfm", distill=True, loop="history"),
    Arm(name="kd_raw", distill=True, raw=True),
    Arm(name="kd_raw_loopfm", distill=True, raw=True, loop="history"),
    Arm(name="placebo", distill=True, raw=True, loop="shuffled"),
    Arm(name="bound", distill=True, raw=True, loop="own"),
)

# These read what the store would have served, which the as_served stage finds for them.
SOLARIS_ARMS: Final = (
    Arm(name="solaris_exact", served=("exact",)),
    Arm(name="solaris_user", served=("exact", "user")),
    Arm(name="solaris", served=FIELDS),
    Arm(name="loopfm_solaris", loop="history", served=FIELDS),
    Arm(name="kd_loopfm_solaris", distill=True, loop="history", served=FIELDS),
    Arm(name="kd_raw_solaris", distill=True, raw=True, served=FIELDS),
    Arm(name="kd_raw_loopfm_solaris", distill=True, raw=True, loop="history", served=FIELDS),
    Arm(name="solaris_placebo", distill=True, raw=True, served=FIELDS, shuffled_served=True),
)


def readers_of_store(config: RunConfig) -> tuple[str, ...]:
    """The run's arms that read what a store serves."""
    return tuple(arm.name for arm in arms_named(config.transfer.arms) if arm.served)


def arms_named(names: tuple[str, ...]) -> tuple[Arm, ...]:
    """The arms of these names, in this order; `ConfigError` names an unknown one."""
    known = {arm.name: arm for arm in (*ALL_ARMS, *SOLARIS_ARMS)}
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise ConfigError(
            f"transfer.arms must name some of {list(known)}, got {list(names)}; "
            f"remove {unknown or 'nothing and name at least one'}"
        )
    return tuple(known[name] for name in names)
