"""What other budgets and lives of vectors would cover: the day played again, for a part of users.

Suffixes: R pairs asked for.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from pipeline.run.config import SolarisConfig
from pipeline.run.window import DAY_US, HOUR_US
from pipeline.solaris.history import VectorHistory
from pipeline.solaris.offers import Codes
from pipeline.solaris.policy import Chosen, choose_pairs
from pipeline.solaris.rankings import MINUTE_US, Lessons, Ranking, ranking_of
from pipeline.solaris.requests import Requests
from pipeline.solaris.serving import SOURCES
from pipeline.solaris.store import Generation, Vectors

BUDGET_PERCENTS: Final = (20, 40, 60, 80, 100)
TTL_HOURS: Final = (6, 12, 24, 48)
SWEEP_FINALISTS: Final = 30_000  # of the day: of more, those of a part of the users
Point = dict[str, float]


def sweeps(known: Requests, config: SolarisConfig, *, day_us: int) -> dict[str, dict[str, Point]]:
    """Shares of exact, user and none by percent of the budget and by TTL in hours.

    Neighbours are left out: without the model, vectors that were not computed have no likeness.
    `known` are requests of some users as stage predict reads them, up to the end of the day that
    begins at `day_us`.
    """
    codes = Codes(known)
    full = config.vectors_per_request
    budgets = {
        str(percent): replace(config, vectors_per_request=full * percent / 100)
        for percent in BUDGET_PERCENTS
    }
    lives = {str(hours): replace(config, ttl_hours=float(hours)) for hours in TTL_HOURS}
    lessons: dict[float, Lessons] = {}
    found: dict[SolarisConfig, Point] = {}
    for one in (*budgets.values(), *lives.values()):
        if one not in found:  # the config itself is in both
            ranking = ranking_of(known, codes, one, lessons.setdefault(one.ttl_hours, {}))
            found[one] = _shares(known, codes, ranking, one, day_us)
    return {
        "budget_percent": {name: found[one] for name, one in budgets.items()},
        "ttl_hours": {name: found[one] for name, one in lives.items()},
    }


def sample_parts(asked: int) -> int:
    """One in how many users to play, of a day with so many finalists."""
    return max(1, -(-asked // SWEEP_FINALISTS))


def _shares(
    known: Requests, codes: Codes, ranking: Ranking, config: SolarisConfig, day_us: int
) -> Point:
    chosen = choose_pairs(
        known,
        codes,
        ranking,
        config,
        begin_us=day_us - config.warmup_days * DAY_US,
        end_us=day_us + DAY_US,
    )
    asked = known.since(day_us)
    owner_R = asked.request_of_F
    history = VectorHistory(_blank(chosen), _generation(config))
    source_R = history.serve(asked.user_Q[owner_R], asked.ad_F, asked.ts_us_Q[owner_R]).source_B
    count = max(len(source_R), 1)
    return {
        name: round(int((source_R == code).sum()) / count, 6)
        for code, name in enumerate(SOURCES)
        if name != "neighbours"
    }


def _blank(chosen: Chosen) -> Vectors:
    """The chosen pairs as if they had been computed: only when and for whom matters here."""
    return Vectors(
        user_N=chosen.user_N,
        ad_N=chosen.ad_N,
        written_at_N=chosen.at_us_N,
        score_N=np.zeros(len(chosen.user_N), dtype=np.float32),
        z_Nd=np.zeros((len(chosen.user_N), 1), dtype=np.int8),
    )


def _generation(config: SolarisConfig) -> Generation:
    return Generation(
        fingerprint="sweep",
        epoch="",
        day="",
        fm_cut_us=0,
        as_of_us=0,
        ttl_us=int(config.ttl_hours * HOUR_US),
        delay_us=int(config.delay_minutes * MINUTE_US),
        width=1,
        dtype="int8",
    )
