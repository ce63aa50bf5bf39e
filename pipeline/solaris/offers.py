"""Pairs that may be worth a vector: the finalists of users' last few requests, each pair once.

Suffixes: Q requests, F finalists, P distinct pairs, U users, A ads, C pairs offered.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipeline.solaris.requests import Int64s, Requests

NOBODY = -1  # no request


class Codes:
    """Users, ads and pairs of requests by place: in the order of their ids, pairs by user first.

    `ordinal_Q` counts the earlier requests of the same user.
    """

    def __init__(self, requests: Requests) -> None:
        self.users_U, self.user_Q = np.unique(requests.user_Q, return_inverse=True)
        self.ads_A, ad_F = np.unique(requests.ad_F, return_inverse=True)
        num_ads = max(len(self.ads_A), 1)
        code_F = self.user_Q[requests.request_of_F] * num_ads + ad_F
        code_P, self.pair_F = np.unique(code_F, return_inverse=True)
        self.user_P, self.ad_P = code_P // num_ads, code_P % num_ads
        self.previous_Q, self.ordinal_Q = _chains(self.user_Q)


@dataclass(frozen=True, kw_only=True)
class Offer:
    """Pairs of some users, each once, with the newest request (`recency_C`) that named it.

    `recent_C` is the sum over the requests that named it of 2^-(requests ago) / log2(2 + rank).
    """

    pair_C: Int64s
    user_C: Int64s
    recent_C: npt.NDArray[np.float64]
    recency_C: Int64s


class Offers:
    """Users' last requests as they come in, and what these offer."""

    def __init__(self, requests: Requests, codes: Codes, depth: int) -> None:
        self._requests, self._codes, self._depth = requests, codes, depth
        self._request_F = requests.request_of_F
        self.last_U = np.full(len(codes.users_U), NOBODY)

    def read(self, since: int, until: int) -> Int64s:
        """Take in requests [since, until); returns their users, each once."""
        new_Q = np.arange(since, until)
        user_Q = self._codes.user_Q[new_Q]
        self.last_U[user_Q] = new_Q  # of a user's requests the last one stays
        return np.unique(user_Q)

    def of(self, users: Int64s) -> Offer:
        """Finalists of the users' last `depth` requests, summed by pair."""
        request = self.last_U[users]
        rows, weights = [], []
        for ago in range(self._depth):
            request = request[request != NOBODY]
            row = _ranges(self._requests.first_Q, request)
            rows.append(row)
            weights.append(2.0**-ago / np.log2(2.0 + self._requests.rank_F[row]))
            request = self._codes.previous_Q[request]
        row_C, weight_C = np.concatenate(rows), np.concatenate(weights)
        pair_C, inverse = np.unique(self._codes.pair_F[row_C], return_inverse=True)
        recency_C = np.full(len(pair_C), NOBODY)
        np.maximum.at(recency_C, inverse, self._request_F[row_C])
        return Offer(
            pair_C=pair_C,
            user_C=self._codes.user_P[pair_C],
            recent_C=np.bincount(inverse, weight_C, minlength=len(pair_C)).astype(np.float64),
            recency_C=recency_C,
        )


def _chains(user_Q: Int64s) -> tuple[Int64s, Int64s]:
    """Index of the same user's previous request (`NOBODY` for the first); how many there were."""
    order = np.argsort(user_Q, kind="stable")
    user = user_Q[order]
    same = user[1:] == user[:-1]
    previous_Q = np.full(len(user_Q), NOBODY)
    previous_Q[order[1:][same]] = order[:-1][same]
    begins = np.flatnonzero(np.append(True, ~same)[: len(user)])
    length = np.diff(np.append(begins, len(user)))
    ordinal_Q = np.empty(len(user_Q), dtype=np.int64)
    ordinal_Q[order] = np.arange(len(user)) - np.repeat(begins, length)
    return previous_Q, ordinal_Q


def _ranges(first_Q: Int64s, request: Int64s) -> Int64s:
    """Positions of all finalists of the given requests, concatenated."""
    size = first_Q[request + 1] - first_Q[request]
    begin = np.cumsum(size) - size
    return np.arange(size.sum()) - np.repeat(begin - first_Q[request], size)
