"""Read the store: `python -m pipeline lookup (--run DIR | --home DIR) --user U --ad A`.

`lookup` is the library call behind it, for one request's pairs at once: exact pair, else the
mean of the user's recent pairs decayed by age, else none.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import sys
from pathlib import Path

import numpy as np

from pipeline.run.errors import ConfigError, DataError
from pipeline.run.paths import confined, open_run
from pipeline.solaris.lmdb_store import open_store
from pipeline.solaris.serving import SOURCES, Served, decayed_means, no_means, serve
from pipeline.solaris.store import Generation, Int64s, VectorStore


def lookup(store: VectorStore, user_B: Int64s, ad_B: Int64s, now_us: int) -> Served:
    """What the store serves for pairs at a time; `DataError` on an empty store."""
    generation = need_generation(store)
    exact = store.pairs(user_B, ad_B, now_us)
    users_U, owner_B = np.unique(user_B, return_inverse=True)
    recent = store.recent(users_U, now_us)
    means = decayed_means(
        found_BS=recent.found_BS[owner_B],
        age_us_BS=now_us - recent.written_at_BS[owner_B],
        z_BSd=recent.z_BSd[owner_B],
        ttl_us=generation.ttl_us,
    )
    return serve(
        found_B=exact.found_B,
        age_us_B=now_us - exact.written_at_B,
        z_Bd=exact.z_Bd,
        near=no_means(len(user_B), generation.width),
        user=means,
    )


def need_generation(store: VectorStore) -> Generation:
    """The generation in use, or `DataError`."""
    generation = store.generation()
    if generation is None:
        raise DataError("the store is empty; run the publish stage first")
    return generation


def main(argv: list[str]) -> int:
    """Print what the store serves for one pair, as JSON; exit code 0, also for source none."""
    arguments = _parser().parse_args(argv)
    with open_store(_store_folder(arguments)) as store:
        generation = need_generation(store)
        now_us = _time_us(arguments.at) if arguments.at else generation.as_of_us
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


def _store_folder(arguments: argparse.Namespace) -> Path:
    if arguments.run:
        return open_run(arguments.run).store()
    root = Path(arguments.home).resolve() / "store"
    if arguments.lineage:
        return confined(root, arguments.lineage)
    lineages = sorted(p.name for p in root.iterdir() if p.is_dir()) if root.is_dir() else []
    if not lineages:
        raise ConfigError(f"--home {arguments.home} holds no Solaris store; publish one first")
    if len(lineages) > 1:
        raise ConfigError(
            f"--home {arguments.home} holds the stores {lineages}; name one by --lineage"
        )
    return root / lineages[0]


def _time_us(text: str) -> int:
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
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("--run", help="a run folder: the store of its lineage")
    place.add_argument("--home", help="a home folder: its store, when it has one")
    parser.add_argument("--lineage", default="", help="which store of --home")
    parser.add_argument("--user", type=int, required=True, help="user_id")
    parser.add_argument("--ad", type=int, required=True, help="ad_id")
    parser.add_argument("--at", default="", help="UTC time; default: the end of the stored day")
    return parser
