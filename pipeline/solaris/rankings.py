"""Three ways to say which offers matter most: recent finalists, popular ads, expected asks.

A ranking reads requests up to a tick and then gives the tick's offers their priorities; it never
sees a later request. Suffixes: P distinct pairs, U users, M offers of the past, C pairs offered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from pipeline.loopfm.sequence import index_by_owner
from pipeline.mixing.hashing import bucket_of
from pipeline.run.config import SolarisConfig
from pipeline.run.window import DAY_US, HOUR_US
from pipeline.solaris.offers import Codes, Offer, Offers
from pipeline.solaris.predictor import AskModel, fit
from pipeline.solaris.requests import Int64s, Requests
from pipeline.solaris.signals import FEATURES, Floats, Signals

FIT_FINALISTS: Final = 200_000  # of a day of fitting: of more, those of a part of the users
MINUTE_US: Final = 60_000_000


@dataclass(frozen=True)
class Lesson:
    """A day's model, None where its offers said too little, and how many these were."""

    model: AskModel | None
    offers: int


Lessons = dict[int, Lesson]  # by day since 1970


class Ranking(Protocol):
    """Priorities of offers as of a tick."""

    def advance(self, until: int, now_us: int) -> None:
        """Read the requests up to index `until`, all before `now_us`."""

    def priorities(self, offer: Offer, now_us: int) -> Floats:
        """One number per pair offered, the larger the better."""


def ranking_of(
    requests: Requests, codes: Codes, config: SolarisConfig, lessons: Lessons | None = None
) -> Ranking:
    """The ranking that `solaris.policy` names.

    `lessons`, of the same requests and a config that differs in the budget alone, save learning
    again.
    """
    if config.policy == "logistic":
        return ExpectedAsks(requests, codes, config, lessons)
    return Popular(requests, codes) if config.policy == "popularity" else Recent()


class Recent:
    """The finalists of the last requests, newest and best ranked first."""

    def advance(self, until: int, now_us: int) -> None:
        """Offers alone say what is recent."""

    def priorities(self, offer: Offer, now_us: int) -> Floats:
        """The offer's own sum over requests."""
        return offer.recent_C


class Popular:
    """The ads that were finalists most often lately, of any user."""

    def __init__(self, requests: Requests, codes: Codes) -> None:
        self._signals = Signals(requests, codes)
        self._since = 0

    def advance(self, until: int, now_us: int) -> None:
        """Count the requests."""
        self._signals.read(self._since, until, now_us)
        self._since = until

    def priorities(self, offer: Offer, now_us: int) -> Floats:
        """The ad's part of all finalists."""
        return np.exp(self._signals.popularity(offer.pair_C, now_us))


class ExpectedAsks:
    """The asks that a vector would answer, by a model that is fitted anew at every midnight.

    It learns from the offers of the last day whose vectors would have ended their lives by that
    midnight. Where those say too little, recent finalists are taken.
    """

    def __init__(
        self,
        requests: Requests,
        codes: Codes,
        config: SolarisConfig,
        lessons: Lessons | None = None,
    ) -> None:
        self._requests, self._codes, self._config = requests, codes, config
        self.lessons: Lessons = {} if lessons is None else lessons
        self._signals = Signals(requests, codes)
        self._asks = index_by_owner(codes.pair_F, requests.ts_us_Q[requests.request_of_F])
        self._since, self._day = 0, -1

    def advance(self, until: int, now_us: int) -> None:
        """Count the requests; past a midnight, fit anew first."""
        if now_us // DAY_US != self._day:
            self._day = now_us // DAY_US
            if self._day not in self.lessons:
                x_MK, asks_M = self._offers_before(self._day * DAY_US)
                self.lessons[self._day] = Lesson(fit(x_MK, asks_M), len(asks_M))
        self._signals.read(self._since, until, now_us)
        self._since = until

    def priorities(self, offer: Offer, now_us: int) -> Floats:
        """Expected asks; what recent finalists get while there is no model."""
        model = self.lessons[self._day].model
        if model is None:
            return offer.recent_C
        return model.asks(self._signals.features(offer.pair_C, now_us))

    def _offers_before(self, midnight_us: int) -> tuple[Floats, Int64s]:
        """Features (M, K) of a day's offers, and how often each was asked for until midnight."""
        ttl_us = int(self._config.ttl_hours * HOUR_US)
        delay_us, tick_us = (
            int(minutes * MINUTE_US)
            for minutes in (self._config.delay_minutes, self._config.tick_minutes)
        )
        end_us = midnight_us - ttl_us
        ticks = np.arange(end_us - DAY_US, end_us + 1, tick_us)
        until_T = np.searchsorted(self._requests.ts_us_Q, ticks)
        signals = Signals(self._requests, self._codes)
        offers = Offers(self._requests, self._codes, self._config.recent_requests)
        sampled_U = self._sample(int(until_T[0]), int(until_T[-1]))
        features, asks, since = [np.zeros((0, len(FEATURES)))], [np.zeros(0, dtype=np.int64)], 0
        for now_us, until in zip(ticks.tolist(), until_T.tolist(), strict=True):
            signals.read(since, until, now_us)
            active_U = offers.read(since, until)
            since = until
            if now_us == ticks[0]:
                continue  # the day before, read at once
            pair_C = offers.of(active_U[sampled_U[active_U]]).pair_C
            features.append(signals.features(pair_C, now_us))
            before, after = np.full((2, len(pair_C)), [[now_us + delay_us], [now_us + ttl_us]])
            asks.append(self._asks.ends(pair_C, after) - self._asks.ends(pair_C, before))
        return np.concatenate(features), np.concatenate(asks)

    def _sample(self, first: int, last: int) -> npt.NDArray[np.bool_]:
        """Which users to learn from, so that requests [first, last) give about enough offers."""
        finalists = int(self._requests.first_Q[last] - self._requests.first_Q[first])
        parts = max(1, -(-finalists // FIT_FINALISTS))
        return np.asarray(bucket_of(self._codes.users_U, parts) == 0)
