"""The one reader of dates, for every kind of trigger."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dags._days import later_days, resolve_day, resolve_run
from pipeline.run.errors import ConfigError, DataError

MIDNIGHT = dt.datetime(2026, 11, 29, tzinfo=dt.UTC)
LATER = dt.datetime(2026, 12, 1, 15, 30, tzinfo=dt.UTC)


def event(
    run: str | None = None, key: str | None = None, day: str | None = None, hour: int = 0
) -> Any:
    extra = {k: v for k, v in (("run", run), ("day", day)) if v}
    when = MIDNIGHT + dt.timedelta(hours=hour)
    return SimpleNamespace(partition_key=key, extra=extra, timestamp=when)


def context(key: str | None = None, events: dict[str, list[Any]] | None = None, **more: Any) -> Any:
    triggers = {SimpleNamespaceAsset(name): found for name, found in (events or {}).items()}
    return {
        "dag_run": SimpleNamespace(partition_key=key),
        "triggering_asset_events": triggers,
        **more,
    }


class SimpleNamespaceAsset:
    """Hashable by identity, with a name, as Airflow's assets are."""

    def __init__(self, name: str) -> None:
        self.name = name


@pytest.mark.parametrize(
    ("params", "given", "day"),
    [
        pytest.param({"day": "2026-11-20"}, context(key="2026-11-29"), "2026-11-20", id="param"),
        pytest.param({"day": None}, context(key="2026-11-29"), "2026-11-29", id="scheduled"),
        pytest.param({}, context(key="2026-11-29", logical_date=LATER), "2026-11-29", id="api key"),
        pytest.param(
            {}, context(events={"a": [event(key="2026-11-28")]}), "2026-11-28", id="asset key"
        ),
        pytest.param(
            {}, context(events={"a": [event(day="2026-11-27")]}), "2026-11-27", id="asset extra"
        ),
        pytest.param(
            {},
            context(data_interval_start=MIDNIGHT, logical_date=LATER),
            "2026-11-29",
            id="data interval",
        ),
        pytest.param({}, context(logical_date=LATER), "2026-12-01", id="logical date"),
        pytest.param({"day": "2026-11-20"}, {}, "2026-11-20", id="dags test with conf"),
    ],
)
def test_day_of_every_trigger(params: dict[str, Any], given: Any, day: str) -> None:
    assert resolve_day(params, given) == day


def test_no_day_is_an_error_that_says_how_to_set_it() -> None:
    with pytest.raises(ConfigError, match="set the parameter day"):
        resolve_day({"day": None}, context(logical_date=None))


@pytest.mark.parametrize("text", ["yesterday", "20261129", "2026-13-01", "2026-11-29T00:00"])
def test_a_wrong_day_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="day must be a date"):
        resolve_day({"day": text}, context())


def test_run_comes_from_the_event_that_all_assets_share(own_home: Path) -> None:
    events = {
        "foundation_model": [event("2026-11-29/a"), event("2026-11-29/b", hour=2)],
        "solaris_store": [event("2026-11-29/a", hour=1)],
    }
    assert resolve_run({}, context(events=events)) == str(own_home / "runs/2026-11-29/a")


def test_newest_event_wins_among_equals(own_home: Path) -> None:
    events = {"foundation_model": [event("2026-11-29/b", hour=2), event("2026-11-29/a")]}
    assert resolve_run({}, context(events=events)) == str(own_home / "runs/2026-11-29/b")


def test_an_event_cannot_lead_outside_the_runs(own_home: Path) -> None:
    with pytest.raises(ConfigError, match="leads outside"):
        resolve_run({}, context(events={"a": [event("../../etc")]}))


def test_by_hand_the_newest_run_of_the_day_is_taken(own_home: Path) -> None:
    import os

    for age, name in ((1, "old"), (0, "new")):
        path = own_home / "runs/2026-11-29" / name / "run.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({}))
        os.utime(path, (1e9 - age, 1e9 - age))
    assert resolve_run({"day": "2026-11-29"}, context()).endswith("/new")


def test_a_day_without_run_is_an_error(own_home: Path) -> None:
    with pytest.raises(DataError, match="no run of 2026-11-29"):
        resolve_run({"day": "2026-11-29"}, context())


def test_a_range_goes_on_from_the_day_after() -> None:
    assert later_days({}, "2026-11-29") == []
    assert later_days({"until": None}, "2026-11-29") == []
    assert later_days({"until": "2026-11-29"}, "2026-11-29") == []
    assert later_days({"until": "2026-12-01"}, "2026-11-29") == ["2026-11-30", "2026-12-01"]


@pytest.mark.parametrize(
    ("until", "said"),
    [
        ("2026-11-28", "until must be from 2026-11-29 on"),
        ("2027-11-30", "at most 366 days in all, got 2027-11-30"),
        ("tomorrow", "until must be a date like 2026-11-29, got 'tomorrow'"),
    ],
)
def test_a_range_that_is_none_is_refused(until: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        later_days({"until": until}, "2026-11-29")
