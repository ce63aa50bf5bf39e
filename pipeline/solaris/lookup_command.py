"""Read the store: `python -m pipeline lookup (--run DIR | --home DIR) --user U --ad A`."""

from __future__ import annotations

import argparse
import datetime as dt
import json
import sys

import numpy as np

from pipeline.run.errors import ConfigError
from pipeline.solaris.lookup import lookup, need_generation
from pipeline.solaris.serving import SOURCES
from pipeline.solaris.stores import add_place, open_store, place_from


def main(argv: list[str]) -> int:
    """Print what the store serves for one pair, as JSON; exit code 0, also for source none."""
    arguments = _parser().parse_args(argv)
    with open_store(place_from(arguments), timeout_s=5.0) as store:
        generation = need_generation(store.current())
        now_us = time_us(arguments.at) if arguments.at else generation.as_of_us
        user_B, ad_B = np.array([arguments.user]), np.array([arguments.ad])
        served = lookup(store, user_B, ad_B, now_us)
    answer = {
        "user": arguments.user,
        "ad": arguments.ad,
        "at": _iso(now_us),
        "source": SOURCES[int(served.source_B[0])],
        "pair": _field(SOURCES[int(served.pair_B[0])], served.age_s_B[0], served.z_Bd[0]),
        "user_mean": _field(bool(served.user_B[0]), served.user_age_s_B[0], served.user_z_Bd[0]),
        "epoch": generation.epoch,
        "day": generation.day,
    }
    print(json.dumps(answer), file=sys.stdout)
    return 0


def _field(found: str | bool, age_s: np.float32, z_d: np.ndarray) -> dict[str, object]:
    vector = [round(float(x), 6) for x in z_d]
    return {"found": found, "age_s": round(float(age_s), 3), "vector": vector}


def time_us(text: str) -> int:
    """Microseconds of an ISO time, UTC unless it says otherwise; `ConfigError` on any other."""
    try:
        when = dt.datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"--at must be a time like 2026-11-29T18:00:00, got {text!r}; fix it"
        ) from None
    when = when if when.tzinfo else when.replace(tzinfo=dt.UTC)
    return (when - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)


def _iso(ts_us: int) -> str:
    return (dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=ts_us)).isoformat()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m pipeline lookup", description=__doc__)
    add_place(parser)
    parser.add_argument("--user", type=int, required=True, help="user_id")
    parser.add_argument("--ad", type=int, required=True, help="ad_id")
    parser.add_argument("--at", default="", help="UTC time; default: the end of the stored day")
    return parser
