"""What is covered at what budget, by policy: the planted request world, played and replayed.

Suffixes: R pairs asked for, C pairs offered, N pairs chosen.
"""

from __future__ import annotations

import statistics

import numpy as np

from benchmarks._measure import Bound
from benchmarks._request_world import RequestWorld, planted_requests
from pipeline.loopfm.sequence import index_by_owner
from pipeline.run.config import SolarisConfig
from pipeline.run.window import DAY_US, HOUR_US
from pipeline.solaris.history import VectorHistory
from pipeline.solaris.offers import Codes, Offer
from pipeline.solaris.policy import choose_pairs
from pipeline.solaris.rankings import MINUTE_US, Ranking, ranking_of
from pipeline.solaris.requests import Requests
from pipeline.solaris.serving import EXACT, NONE, USER
from pipeline.solaris.signals import Floats
from pipeline.solaris.store import Generation, Vectors

LAST_DAY = "2026-11-29"
DAYS = 4  # the replayed one, a day of warm-up, and those that the predictor learns from
TIGHT, DEFAULT = 2.0, 3.5  # vectors per request
TARGETS: dict[str, Bound] = {
    "coverage_exact": (">=", 0.40),
    "coverage_user": (">=", 0.85),
    "coverage_all": (">=", 0.95),
    "floor_cost": ("<=", 0.01),
    "predictor_vs_recent_tight": (">=", 1.10),
    "predictor_vs_recent": (">=", 1.03),
    "predictor_vs_popularity": (">=", 1.30),
}


def figures(*, quick: bool) -> dict[str, float]:
    """Coverage of the default policy, and exact coverage against its rivals; medians over seeds."""
    seeds, users = (1, 2_500) if quick else (3, 5_000)
    worlds = [
        planted_requests(users=users, days=DAYS, last_day=LAST_DAY, seed=seed)
        for seed in range(seeds)
    ]
    found = [_figures_of(world) for world in worlds]
    return {name: statistics.median(one[name] for one in found) for name in found[0]}


def _figures_of(world: RequestWorld) -> dict[str, float]:
    ours = coverage(world, SolarisConfig())
    exact = {
        (policy, budget): coverage(world, config, oracle=policy == "oracle")["exact"]
        for budget in (TIGHT, DEFAULT)
        for policy, config in _rivals(budget).items()
    }
    without = coverage(world, SolarisConfig(user_floor=False))
    ratios = {
        f"predictor_vs_{rival}{name}": exact["logistic", budget] / exact[rival, budget]
        for rival in ("recent", "popularity")
        for name, budget in (("_tight", TIGHT), ("", DEFAULT))
    }
    return {
        "coverage_exact": ours["exact"],
        "coverage_user": ours["user"],
        "coverage_pair": ours["pair"],
        "coverage_all": ours["all"],
        "shown_exact": ours["shown"],
        "floor_cost": without["exact"] - ours["exact"],
        "floor_gain_user": ours["user"] - without["user"],
        **ratios,
        "recent_exact": exact["recent", DEFAULT],
        "popularity_exact": exact["popularity", DEFAULT],
        "oracle_exact": exact["oracle", DEFAULT],
        "oracle_room_tight": exact["oracle", TIGHT] / exact["logistic", TIGHT],
        "oracle_room": exact["oracle", DEFAULT] / exact["logistic", DEFAULT],
    }


def _rivals(budget: float) -> dict[str, SolarisConfig]:
    return {
        "logistic": SolarisConfig(vectors_per_request=budget),
        "recent": SolarisConfig(vectors_per_request=budget, policy="recent"),
        "popularity": SolarisConfig(vectors_per_request=budget, policy="popularity"),
        "oracle": SolarisConfig(vectors_per_request=budget),
    }


def coverage(
    world: RequestWorld, config: SolarisConfig, *, oracle: bool = False
) -> dict[str, float]:
    """Parts of the pairs asked for on the last day that each source, or a better one, covers."""
    requests = world.requests
    codes = Codes(requests)
    ranking: Ranking = (
        Oracle(requests, codes, config) if oracle else ranking_of(requests, codes, config)
    )
    warm_us = world.begin_us - config.warmup_days * DAY_US
    chosen = choose_pairs(requests, codes, ranking, config, begin_us=warm_us, end_us=world.end_us)
    written = Vectors(
        user_N=chosen.user_N,
        ad_N=chosen.ad_N,
        written_at_N=chosen.at_us_N,
        score_N=np.zeros(len(chosen.user_N), dtype=np.float32),
        z_Nd=world.vectors(chosen.user_N, chosen.ad_N),
    )
    history = VectorHistory(written, _generation(world, config, written), config.neighbours)
    asked = requests.since(world.begin_us)
    owner_R = asked.request_of_F
    served = history.serve(asked.user_Q[owner_R], asked.ad_F, asked.ts_us_Q[owner_R])
    shown_R = world.shown_F[len(world.shown_F) - len(owner_R) :]
    return {
        "exact": float((served.pair_B == EXACT).mean()),
        "user": float((served.source_B >= USER).mean()),
        "pair": float((served.pair_B != NONE).mean()),
        "all": float((served.source_B != NONE).mean()),
        "shown": float((served.pair_B[shown_R] == EXACT).mean()),
    }


class Oracle:
    """Priorities that know the future: how often each pair will be asked for in a vector's life."""

    def __init__(self, requests: Requests, codes: Codes, config: SolarisConfig) -> None:
        self._asks = index_by_owner(codes.pair_F, requests.ts_us_Q[requests.request_of_F])
        self._delay_us = int(config.delay_minutes * MINUTE_US)
        self._ttl_us = int(config.ttl_hours * HOUR_US)

    def advance(self, until: int, now_us: int) -> None:
        """Nothing to learn."""

    def priorities(self, offer: Offer, now_us: int) -> Floats:
        """The asks to come."""
        first, last = (
            np.full(len(offer.pair_C), now_us + span) for span in (self._delay_us, self._ttl_us)
        )
        asks = self._asks.ends(offer.pair_C, last) - self._asks.ends(offer.pair_C, first)
        return asks.astype(np.float64)


def _generation(world: RequestWorld, config: SolarisConfig, written: Vectors) -> Generation:
    return Generation(
        fingerprint="benchmark",
        epoch="benchmark",
        day=LAST_DAY,
        fm_cut_us=0,
        as_of_us=world.end_us,
        ttl_us=int(config.ttl_hours * HOUR_US),
        delay_us=int(config.delay_minutes * MINUTE_US),
        width=written.z_Nd.shape[1],
        dtype="int8",
    )
