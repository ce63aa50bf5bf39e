"""What is known of users, ads and pairs at a time, from the requests before it.

Counts fade by exp(-age / `MEMORY_US`). Whether a campaign still runs, and has budget left, is not
in request logs; what they show of it is how often the ad came lately against how often it should
have (`silence`). Suffixes: Q requests, F finalists, P distinct pairs, U users, A ads, C pairs
asked about, K features.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from pipeline.run.window import DAY_US, HOUR_US
from pipeline.solaris.offers import Codes
from pipeline.solaris.requests import Int64s, Requests

Floats = npt.NDArray[np.float64]
MEMORY_US: Final = DAY_US
FEATURES: Final = (
    "share",  # log of the part of the user's requests that had the pair
    "rate",  # log of the user's requests
    "usual",  # log of the user's requests a day since the first that is known of anyone
    "away",  # log hours since the user's last request
    "ago",  # log of the user's requests since the pair's last
    "rank",  # log of its rank there
    "score",  # its distance from the best score there
    "age",  # log hours since the user's first request with it
    "popular",  # log of the ad's part of all finalists
    "silence",  # finalists of the ad that did not come since its last, at its usual rate
    "daytime",  # part of the day that is over
    "older",  # the pair came on an earlier day ...
    "older_daytime",  # ... and that part of today is over
)
SILENCE_CAP = 8.0  # expected appearances: exp(-8) is no chance


class Signals:
    """Running counts: `read` takes them in time order, `features` describes pairs as of then."""

    def __init__(self, requests: Requests, codes: Codes) -> None:
        self._requests, self._codes = requests, codes
        self._request_F = requests.request_of_F
        users, ads, pairs = len(codes.users_U), len(codes.ads_A), len(codes.user_P)
        self._pair_P, self._user_U, self._ad_A = _Fading(pairs), _Fading(users), _Fading(ads)
        self._all = _Fading(1)
        self._begin_us = int(requests.ts_us_Q[0]) if len(requests) else 0
        self._last_P = np.full(pairs, -1)  # finalist row
        self._first_us_P = np.full(pairs, np.iinfo(np.int64).max)
        self._last_Q_of_U = np.full(users, -1)
        self._ad_seen_us_A = np.full(ads, -1)

    def read(self, since: int, until: int, now_us: int) -> None:
        """Count requests [since, until), all before `now_us`."""
        if until <= since:
            return
        codes, requests = self._codes, self._requests
        new_Q = slice(since, until)
        rows = np.arange(requests.first_Q[since], requests.first_Q[until])
        pair_F, ts_us_F = codes.pair_F[rows], requests.ts_us_Q[self._request_F[rows]]
        ad_F = codes.ad_P[pair_F]
        self._user_U.add(codes.user_Q[new_Q], requests.ts_us_Q[new_Q], now_us)
        self._pair_P.add(pair_F, ts_us_F, now_us)
        self._ad_A.add(ad_F, ts_us_F, now_us)
        self._all.add(np.zeros(len(rows), dtype=np.int64), ts_us_F, now_us)
        # rows come in time order, so that of several the last one stays
        self._last_P[pair_F] = rows
        self._ad_seen_us_A[ad_F] = ts_us_F
        self._last_Q_of_U[codes.user_Q[new_Q]] = np.arange(since, until)
        np.minimum.at(self._first_us_P, pair_F, ts_us_F)

    def features(self, pair_C: Int64s, now_us: int) -> Floats:
        """`FEATURES` (C, K) of pairs that were finalists before."""
        codes, requests = self._codes, self._requests
        user_C, ad_C, row_C = codes.user_P[pair_C], codes.ad_P[pair_C], self._last_P[pair_C]
        requests_C = self._user_U.at(user_C, now_us)
        came_C, ad_came_C = self._pair_P.at(pair_C, now_us), self._ad_A.at(ad_C, now_us)
        last_C = self._last_Q_of_U[user_C]
        ago_C = codes.ordinal_Q[last_C] - codes.ordinal_Q[self._request_F[row_C]]
        days = (now_us - self._begin_us) / DAY_US
        midnight_us = now_us - now_us % DAY_US
        daytime = (now_us - midnight_us) / DAY_US
        older_C = (self._first_us_P[pair_C] < midnight_us).astype(np.float64)
        silence_C = ad_came_C * (now_us - self._ad_seen_us_A[ad_C]) / MEMORY_US
        columns = [
            np.log((came_C + 0.1) / (requests_C + 1.0)),
            np.log(requests_C + 0.3),
            np.log((codes.ordinal_Q[last_C] + 1.5) / (days + 0.5)),
            _log_hours(now_us - requests.ts_us_Q[last_C]),
            np.log1p(ago_C),
            np.log(1.0 + requests.rank_F[row_C]),
            requests.score_F[row_C].astype(np.float64),
            _log_hours(now_us - self._first_us_P[pair_C]),
            self.popularity(pair_C, now_us),
            np.minimum(silence_C, SILENCE_CAP),
            np.full(len(pair_C), daytime),
            older_C,
            older_C * daytime,
        ]
        return np.stack(columns, axis=1)

    def popularity(self, pair_C: Int64s, now_us: int) -> Floats:
        """Log of the part that each pair's ad has of all finalists."""
        came_C = self._ad_A.at(self._codes.ad_P[pair_C], now_us)
        return np.asarray(np.log(came_C / self._all.at(np.zeros(1, dtype=np.int64), now_us)))


class _Fading:
    """Counts that fade by exp(-age / MEMORY_US), each brought up to date when it is touched."""

    def __init__(self, size: int) -> None:
        self._count = np.zeros(size)
        self._at_us = np.zeros(size, dtype=np.int64)

    def add(self, index: Int64s, ts_us: Int64s, now_us: int) -> None:
        touched, inverse = np.unique(index, return_inverse=True)
        weights = np.exp((ts_us - now_us) / MEMORY_US)
        self._count[touched] = self.at(touched, now_us) + np.bincount(inverse, weights)
        self._at_us[touched] = now_us

    def at(self, index: Int64s, now_us: int) -> Floats:
        faded = np.exp((self._at_us[index] - now_us) / MEMORY_US)
        return np.asarray(self._count[index] * faded)


def _log_hours(us_C: Int64s) -> Floats:
    return np.log1p(us_C / HOUR_US)
