"""The time that a run covers, in microseconds UTC. Splits are made on the label time.

The label time of an example is when its label is known: the impression's own time for clicks,
the time plus the attribution window for conversions. A run trains labels of
[train_begin, cut), scores those of [cut, day_end), and its next day trains from `cut` on.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from pipeline.run.config import RunConfig

HOUR_US = 3_600_000_000
DAY_US = 24 * HOUR_US


@dataclass(frozen=True, kw_only=True)
class Window:
    """Boundaries of a run. `days` are the days whose impressions take part, oldest first.

    `students_begin`: students use impressions from here on, and the representation epoch's FM
    saw labels before it only.
    """

    train_begin: int
    students_begin: int
    cut: int
    day_end: int
    days: tuple[str, ...]


def day_begin_us(day: str) -> int:
    """Start of a day, microseconds since 1970 UTC."""
    return (dt.date.fromisoformat(day) - dt.date(1970, 1, 1)).days * DAY_US


def day_of_us(ts_us: int) -> str:
    """The day that a time lies in."""
    return (dt.date(1970, 1, 1) + dt.timedelta(days=ts_us // DAY_US)).isoformat()


def days_between(first_us: int, end_us: int) -> tuple[str, ...]:
    """Days that touch [first, end)."""
    return tuple(day_of_us(d * DAY_US) for d in range(first_us // DAY_US, -(-end_us // DAY_US)))


def window_of(config: RunConfig) -> Window:
    """The window of a run: trains from its parent's cut on, else `bootstrap_days` back."""
    day_end = day_begin_us(config.day) + DAY_US
    cut = day_end - config.window.holdout_hours * HOUR_US
    students_begin = day_end - config.window.student_days * DAY_US
    oldest = day_end - config.window.bootstrap_days * DAY_US
    parent = config.parent if config.warm_start else None
    train_begin = max(parent.cut_us, oldest) if parent else oldest
    delay = max(o.window_hours for o in config.objectives) * HOUR_US
    first = max(oldest, min(train_begin - delay, students_begin)) if parent else oldest
    first = min(first, day_end - config.window.history_days * DAY_US)
    return Window(
        train_begin=train_begin,
        students_begin=students_begin,
        cut=cut,
        day_end=day_end,
        days=days_between(first, day_end),
    )
