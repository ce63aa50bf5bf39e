"""Which day a DAG run is about, and which run folder: the only readers of dates and triggers."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pipeline.run.errors import ConfigError
from pipeline.run.paths import confined, home
from pipeline.run.runs import newest_run

LONGEST_RANGE = 366  # days: a slip of the year would fill the queue


def resolve_day(params: Mapping[str, Any], context: Mapping[str, Any]) -> str:
    """The day of a run, from the first of these that is given.

    The `day` parameter, the run's partition key, the triggering asset events, the data interval's
    start, the logical date. `ConfigError` when none is given or when it is no date.
    """
    run = context.get("dag_run")
    given = (
        params.get("day"),
        getattr(run, "partition_key", None),
        next((_day_of_event(event) for event in _events(context) if _day_of_event(event)), None),
        context.get("data_interval_start"),
        context.get("logical_date"),
    )
    for value in given:
        if value:
            return _as_day(value)
    raise ConfigError(
        "the run has no day; set the parameter day to a date like 2026-11-29, "
        "or trigger it with a partition key"
    )


def later_days(params: Mapping[str, Any], day: str) -> list[str]:
    """The days after `day` to the form's `until`, none without it; `ConfigError` on a bad range."""
    if not params.get("until"):
        return []
    until = _as_day(params["until"], "until")
    count = (dt.date.fromisoformat(until) - dt.date.fromisoformat(day)).days
    if not 0 <= count < LONGEST_RANGE:
        raise ConfigError(
            f"until must be from {day} on, at most {LONGEST_RANGE} days in all, got {until}; "
            "name the first day of the range as day"
        )
    first = dt.date.fromisoformat(day)
    return [(first + dt.timedelta(days=i)).isoformat() for i in range(1, count + 1)]


def resolve_run(params: Mapping[str, Any], context: Mapping[str, Any]) -> str:
    """The run folder that a downstream DAG works on.

    The one that the triggering asset events name (the newest that all assets share), else the
    run of the day that was resolved last.
    """
    run = _run_of_events(context)
    if run:
        return str(confined(home() / "runs", run))
    return str(newest_run(resolve_day(params, context)))


def _run_of_events(context: Mapping[str, Any]) -> str | None:
    """Newest run among the events; one that is behind every asset comes before the others."""
    assets_of: dict[str, set[str]] = {}
    newest: dict[str, dt.datetime] = {}
    for asset, events in _by_asset(context).items():
        for event in events:
            run = (event.extra or {}).get("run")
            if run:
                assets_of.setdefault(run, set()).add(str(asset))
                newest[run] = max(event.timestamp, newest.get(run, event.timestamp))
    return max(newest, key=lambda run: (len(assets_of[run]), newest[run]), default=None)


def _by_asset(context: Mapping[str, Any]) -> dict[Any, Any]:
    # no triggering events: Airflow leaves the key out of some contexts
    return {asset.name: events for asset, events in (_triggers(context) or {}).items()}


def _triggers(context: Mapping[str, Any]) -> Mapping[Any, Any] | None:
    return context.get("triggering_asset_events")


def _events(context: Mapping[str, Any]) -> Iterator[Any]:
    for events in _by_asset(context).values():
        yield from events


def _day_of_event(event: Any) -> str | None:
    return getattr(event, "partition_key", None) or (event.extra or {}).get("day")


def _as_day(value: object, name: str = "day") -> str:
    if isinstance(value, dt.datetime):
        return value.astimezone(dt.UTC).date().isoformat()
    text = str(value)
    try:
        if dt.date.fromisoformat(text).isoformat() == text:
            return text
    except ValueError:
        pass
    raise ConfigError(f"{name} must be a date like 2026-11-29, got {text!r}; fix it")


def relative_to_runs(folder: str) -> str:
    """A run folder as the events carry it: relative to runs/, so that homes may differ."""
    return str(Path(folder).resolve().relative_to(home() / "runs"))
