"""The store as of any time: which vectors would have been served, from all that were written.

At a time t a vector written at w serves when w + delay <= t < w + TTL and no newer one of its
pair is available. Suffixes: N vectors, R lookups, S slots of the recent list, d code width.
"""

from __future__ import annotations

import numpy as np

from pipeline.loopfm.sequence import OwnerIndex, index_by_owner
from pipeline.solaris.serving import Means, Served, decayed_means, no_means, serve
from pipeline.solaris.store import RECENT, Generation, Int64s, Vectors

NEVER_US = np.iinfo(np.int64).max // 4
NONE = -1  # no vector


class VectorHistory:
    """Every vector that was written, ready to be asked at any time, many lookups at once."""

    def __init__(self, vectors: Vectors, generation: Generation) -> None:
        # Recent lists run newest first and, at equal times, by ad: so ties lie backwards here.
        self._v = vectors.take(np.lexsort((-vectors.ad_N, vectors.written_at_N)))
        self._delay_us, self._ttl_us = generation.delay_us, generation.ttl_us
        self._users_U, self._ads_A = np.unique(self._v.user_N), np.unique(self._v.ad_N)
        pair_N = self._pairs(self._v.user_N, self._v.ad_N)
        self._by_pair = index_by_owner(pair_N, self._v.written_at_N)
        self._by_user = index_by_owner(self._v.user_N, self._v.written_at_N)
        self._replaced_us_N = self._replaced(pair_N)

    def serve(self, user_R: Int64s, ad_R: Int64s, ts_us_R: Int64s) -> Served:
        """What each lookup gets; a user's mean is made once per time, for all ads of a request."""
        exact_R = self._exact(user_R, ad_R, ts_us_R)
        found_R = exact_R != NONE
        asks, owner_R = np.unique(np.stack([user_R, ts_us_R]), axis=1, return_inverse=True)
        means = self._user_means(asks[0], asks[1])
        return serve(
            found_B=found_R,
            age_us_B=ts_us_R - self._at(self._v.written_at_N, exact_R),
            z_Bd=self._at(self._v.z_Nd, exact_R),
            near=no_means(len(user_R), self._v.z_Nd.shape[1]),
            user=Means(
                found_B=means.found_B[owner_R],
                age_s_B=means.age_s_B[owner_R],
                z_Bd=means.z_Bd[owner_R],
            ),
        )

    def _exact(self, user_R: Int64s, ad_R: Int64s, ts_us_R: Int64s) -> Int64s:
        """The newest available vector of each pair, `NONE` where its life has ended."""
        pair_R = self._pairs(user_R, ad_R)
        end_R = self._by_pair.ends(pair_R, ts_us_R - self._delay_us + 1)
        known_R = end_R > self._by_pair.begins(pair_R)
        vector_R = self._vector_before(self._by_pair, end_R)
        living_R = ts_us_R < self._at(self._v.written_at_N, vector_R) + self._ttl_us
        return np.where(known_R & living_R, vector_R, NONE)

    def _user_means(self, user_R: Int64s, ts_us_R: Int64s) -> Means:
        slots_RS = self._recent(user_R, ts_us_R)
        return decayed_means(
            found_BS=slots_RS != NONE,
            age_us_BS=ts_us_R[:, None] - self._at(self._v.written_at_N, slots_RS),
            z_BSd=self._at(self._v.z_Nd, slots_RS),
            ttl_us=self._ttl_us,
        )

    def _recent(self, user_R: Int64s, ts_us_R: Int64s) -> Int64s:
        """The user's newest vectors (R, S) at each time, newest first, each pair once."""
        slots_RS = np.full((len(user_R), RECENT), NONE)
        filled_R = np.zeros(len(user_R), dtype=np.int64)
        begin_R = self._by_user.ends(user_R, ts_us_R - self._ttl_us + 1)
        place_R = self._by_user.ends(user_R, ts_us_R - self._delay_us + 1) - 1
        open_R = np.flatnonzero(place_R >= begin_R)
        while len(open_R):
            vector = self._by_user.order_N[place_R[open_R]]
            newest = ts_us_R[open_R] < self._replaced_us_N[vector]
            slots_RS[open_R[newest], filled_R[open_R[newest]]] = vector[newest]
            filled_R[open_R] += newest
            place_R[open_R] -= 1
            more = (place_R[open_R] >= begin_R[open_R]) & (filled_R[open_R] < RECENT)
            open_R = open_R[more]
        return slots_RS

    def _pairs(self, user_R: Int64s, ad_R: Int64s) -> Int64s:
        """One code per known pair of a known user and a known ad, -1 for the others."""
        user_code_R = _codes(self._users_U, user_R)
        ad_code_R = _codes(self._ads_A, ad_R)
        known_R = (user_code_R >= 0) & (ad_code_R >= 0)
        return np.where(known_R, user_code_R * len(self._ads_A) + ad_code_R, -1)

    def _replaced(self, pair_N: Int64s) -> Int64s:
        """When the next vector of the same pair becomes available."""
        order = self._by_pair.order_N
        replaced_N = np.full(len(order), NEVER_US)
        same = pair_N[order[1:]] == pair_N[order[:-1]]
        next_us = self._v.written_at_N[order[1:]][same] + self._delay_us
        replaced_N[order[:-1][same]] = next_us
        return replaced_N

    def _vector_before(self, index: OwnerIndex, end_R: Int64s) -> Int64s:
        if not len(index.order_N):
            return np.full(len(end_R), NONE)
        return index.order_N[np.maximum(end_R - 1, 0)]

    def _at(self, values_N: np.ndarray, index: Int64s) -> np.ndarray:
        """Values at an index, zeros at `NONE`."""
        if not len(values_N):
            return np.zeros((*index.shape, *values_N.shape[1:]), dtype=values_N.dtype)
        chosen = values_N[np.maximum(index, 0)]
        chosen[index == NONE] = np.zeros((), dtype=values_N.dtype)
        return chosen


def _codes(known_U: Int64s, ids_R: Int64s) -> Int64s:
    """Places of ids in a sorted array, -1 for absent ones."""
    code_R = np.searchsorted(known_U, ids_R)
    inside_R = code_R < len(known_U)
    inside_R[inside_R] = known_U[code_R[inside_R]] == ids_R[inside_R]
    return np.where(inside_R, code_R, -1).astype(np.int64)
