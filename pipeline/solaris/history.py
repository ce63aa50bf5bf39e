"""The store as of any time: which vectors would have been served, from all that were written.

At a time t a vector written at w serves when w + delay <= t < w + TTL and no newer one of its
pair is available. Neighbours are those of the lookup's day (`neighbourhood`). Suffixes: N vectors,
R lookups, S slots of the recent list, K neighbours, H hits of neighbours, d code width.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from pipeline.loopfm.sequence import OwnerIndex, index_by_owner
from pipeline.run.window import DAY_US
from pipeline.solaris.neighbourhood import Neighbourhood, neighbourhood
from pipeline.solaris.neighbours import NOBODY, near_means
from pipeline.solaris.serving import Means, Served, decayed_means, serve
from pipeline.solaris.store import RECENT, Generation, Int64s, Vectors

NEVER_US = np.iinfo(np.int64).max // 4
NONE = -1  # no vector
NEAR_ROWS = 50_000  # lookups whose neighbours are searched at once: bounds memory


class VectorHistory:
    """Every vector that was written, ready to be asked at any time, many lookups at once."""

    def __init__(self, vectors: Vectors, generation: Generation, neighbours: int = 0) -> None:
        # Recent lists run newest first and, at equal times, by ad: so ties lie backwards here.
        self._v = vectors.take(np.lexsort((-vectors.ad_N, vectors.written_at_N)))
        self._delay_us, self._ttl_us = generation.delay_us, generation.ttl_us
        self._users_U, self._ads_A = np.unique(self._v.user_N), np.unique(self._v.ad_N)
        pair_N = self._pairs(self._v.user_N, self._v.ad_N)
        self._by_pair = index_by_owner(pair_N, self._v.written_at_N)
        self._by_user = index_by_owner(self._v.user_N, self._v.written_at_N)
        self._replaced_us_N = self._replaced(pair_N)
        self._pairs_P = np.unique(pair_N)
        self._neighbours = neighbours
        self._days: dict[int, Neighbourhood] = {}

    @property
    def vectors(self) -> Vectors:
        """All of them, by the time when they were written."""
        return self._v

    def serve(
        self, user_R: Int64s, ad_R: Int64s, ts_us_R: Int64s, *, best_only: bool = False
    ) -> Served:
        """What each lookup gets; a user's mean is made once per time, for all ads of a request.

        `best_only` saves the neighbours of lookups that have a better source.
        """
        exact_R = self._exact(user_R, ad_R, ts_us_R)
        found_R = exact_R != NONE
        asks, owner_R = np.unique(np.stack([user_R, ts_us_R]), axis=1, return_inverse=True)
        means = self._user_means(asks[0], asks[1])
        lacking_R = ~found_R & ~(best_only & means.found_B[owner_R])
        return serve(
            found_B=found_R,
            age_us_B=ts_us_R - self._at(self._v.written_at_N, exact_R),
            z_Bd=self._at(self._v.z_Nd, exact_R),
            near=self._near(user_R, ad_R, ts_us_R, lacking_R),
            user=Means(
                found_B=means.found_B[owner_R],
                age_s_B=means.age_s_B[owner_R],
                z_Bd=means.z_Bd[owner_R],
            ),
        )

    def _near(
        self, user_R: Int64s, ad_R: Int64s, ts_us_R: Int64s, wanted_R: npt.NDArray[np.bool_]
    ) -> Means:
        """The mean of the same ad over the neighbours, where wanted."""
        hits = [self._hits(user_R, ad_R, ts_us_R, rows) for rows in self._by_day(ts_us_R, wanted_R)]
        row_H, vector_H, cosine_H = (
            np.concatenate(column) for column in zip(_no_hits(), *hits, strict=True)
        )
        return near_means(
            count=len(user_R),
            row_H=row_H,
            cosine_H=cosine_H,
            age_us_H=ts_us_R[row_H] - self._at(self._v.written_at_N, vector_H),
            z_Hd=self._at(self._v.z_Nd, vector_H),
            ttl_us=self._ttl_us,
        )

    def _by_day(self, ts_us_R: Int64s, wanted_R: npt.NDArray[np.bool_]) -> Iterator[Int64s]:
        """Wanted rows of one day at a time, a bounded number of them."""
        if not self._neighbours:
            return
        day_R = ts_us_R // DAY_US
        for day in np.unique(day_R[wanted_R]):
            rows = np.flatnonzero(wanted_R & (day_R == day))
            yield from np.array_split(rows, -(-len(rows) // NEAR_ROWS))

    def _hits(
        self, user_R: Int64s, ad_R: Int64s, ts_us_R: Int64s, rows: Int64s
    ) -> tuple[Int64s, Int64s, npt.NDArray[np.float32]]:
        """Lookup, vector and cosine of every neighbour that has the lookup's ad at its time."""
        near = self._neighbourhood(int(ts_us_R[rows[0]] // DAY_US))
        place_RK, cosine_RK = near.of(_codes(self._users_U, user_R[rows]))
        ad_code_R = _codes(self._ads_A, ad_R[rows])
        pair_RK = place_RK * len(self._ads_A) + ad_code_R[:, None]
        there_RK = (place_RK != NOBODY) & (ad_code_R != NONE)[:, None]
        # most neighbours never had the ad: one cheap search before those by time
        there_RK[there_RK] = _codes(self._pairs_P, pair_RK[there_RK]) != NONE
        row_H, neighbour_H = np.nonzero(there_RK)
        lookup_H, pair_H = rows[row_H], pair_RK[row_H, neighbour_H]
        vector_H = self._living(pair_H, ts_us_R[lookup_H])
        alive_H = vector_H != NONE
        cosine_H = cosine_RK[row_H, neighbour_H]
        return lookup_H[alive_H], vector_H[alive_H], cosine_H[alive_H]

    def _neighbourhood(self, day: int) -> Neighbourhood:
        if day not in self._days:
            midnight = np.full(len(self._users_U), day * DAY_US)
            means = self._user_means(self._users_U, midnight)
            vectors_U = self._num_living(day * DAY_US)
            self._days[day] = neighbourhood(means.z_Bd, vectors_U, self._neighbours)
        return self._days[day]

    def _num_living(self, now_us: int) -> Int64s:
        """How many pairs of each user have a vector at a time."""
        written_N = self._v.written_at_N
        living_N = (written_N + self._delay_us <= now_us) & (now_us < written_N + self._ttl_us)
        living_N &= now_us < self._replaced_us_N
        owner_N = np.searchsorted(self._users_U, self._v.user_N[living_N])
        return np.bincount(owner_N, minlength=len(self._users_U)).astype(np.int64)

    def _exact(self, user_R: Int64s, ad_R: Int64s, ts_us_R: Int64s) -> Int64s:
        """The newest available vector of each pair, `NONE` where its life has ended."""
        return self._living(self._pairs(user_R, ad_R), ts_us_R)

    def _living(self, pair_R: Int64s, ts_us_R: Int64s) -> Int64s:
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


def _no_hits() -> tuple[Int64s, Int64s, npt.NDArray[np.float32]]:
    nothing = np.zeros(0, dtype=np.int64)
    return nothing, nothing, np.zeros(0, dtype=np.float32)


def _codes(known_U: Int64s, ids_R: Int64s) -> Int64s:
    """Places of ids in a sorted array, -1 for absent ones."""
    code_R = np.searchsorted(known_U, ids_R)
    inside_R = code_R < len(known_U)
    inside_R[inside_R] = known_U[code_R[inside_R]] == ids_R[inside_R]
    return np.where(inside_R, code_R, -1).astype(np.int64)
