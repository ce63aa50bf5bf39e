"""The read path: what a store serves for the pairs of a request, all of one moment.

The pair's field: the exact vector, else the mean of the neighbours' vectors of the same ad, else
none; the user's field: the mean of its recent ones. A serving process calls this through
`degraded.Lookups`, which never raises. Suffixes: B lookups, U users, A ads asked for, E stored
vectors, C chosen ones, S missing (user, ad), Q users that miss some, K their neighbours, V other
users, H hits, d code width.
"""

from __future__ import annotations

import numpy as np

from pipeline.run.errors import DataError
from pipeline.solaris.neighbours import near_means
from pipeline.solaris.records import Rows, nearest_of, rows_of, user_means
from pipeline.solaris.serving import Means, Served, no_means, serve
from pipeline.solaris.store import NEAREST, VECTORS, Current, Generation, Int64s, Reading
from pipeline.solaris.vector_store import VectorStore


def lookup(store: VectorStore, user_B: Int64s, ad_B: Int64s, now_us: int) -> Served:
    """What the store serves for pairs at a time, all of one moment; `DataError` on an empty store.

    Meant for the candidates of one request: a user's vectors, and those of its neighbours where
    exact ones are missing, are read once for all its ads.
    """
    return store.shelf.read(lambda reading: _serve(reading, user_B, ad_B, now_us))


def _serve(reading: Reading, user_B: Int64s, ad_B: Int64s, now_us: int) -> Served:
    generation = need_generation(reading.current)
    user_U, owner_B = np.unique(user_B, return_inverse=True)
    ad_A, ask_B = np.unique(ad_B, return_inverse=True)
    rows = rows_of(reading.get(VECTORS, user_U), generation)
    slot_B = owner_B * len(ad_A) + ask_B  # a number for each (user, ad)
    entry_B = _entries(rows, generation, ad_A, slot_B, now_us)
    found_B = entry_B >= 0
    near = no_means(len(user_B), generation.width)
    if generation.neighbours and not found_B.all():
        missing_S, place_B = np.unique(slot_B[~found_B], return_inverse=True)
        means = _near(reading, generation, user_U, ad_A, missing_S, now_us)
        near.found_B[~found_B] = means.found_B[place_B]
        near.age_s_B[~found_B] = means.age_s_B[place_B]
        near.z_Bd[~found_B] = means.z_Bd[place_B]
    mean = user_means(rows, generation, now_us)
    z_Bd = np.zeros((len(user_B), generation.width), dtype=rows.rows_E["z"].dtype)
    z_Bd[found_B] = rows.rows_E["z"][entry_B[found_B]]
    age_us_B = np.zeros(len(user_B), dtype=np.int64)
    age_us_B[found_B] = now_us - rows.rows_E["written_at"][entry_B[found_B]]
    return serve(
        found_B=found_B,
        age_us_B=age_us_B,
        z_Bd=z_Bd,
        near=near,
        user=Means(
            found_B=mean.found_B[owner_B],
            age_s_B=mean.age_s_B[owner_B],
            z_Bd=mean.z_Bd[owner_B],
        ),
    )


def _asked(rows: Rows, generation: Generation, ad_A: Int64s, now_us: int) -> tuple[Int64s, Int64s]:
    """The vectors that serve now and are of an asked ad, in their order, and the ad's place."""
    ad_E = rows.rows_E["ad"]
    place_E = np.minimum(np.searchsorted(ad_A, ad_E), len(ad_A) - 1)
    wanted_E = ad_A[place_E] == ad_E
    wanted_E &= generation.alive(rows.rows_E["written_at"], now_us)
    chosen_C = np.flatnonzero(wanted_E)
    return chosen_C, place_E[chosen_C]


def _entries(
    rows: Rows, generation: Generation, ad_A: Int64s, slot_B: Int64s, now_us: int
) -> Int64s:
    """The place of each lookup's exact vector, -1 without."""
    chosen_C, place_C = _asked(rows, generation, ad_A, now_us)
    if not len(chosen_C):
        return np.full(len(slot_B), -1)
    slot_C = rows.owner_E[chosen_C] * len(ad_A) + place_C  # rises: by user, then by ad
    at_B = np.minimum(np.searchsorted(slot_C, slot_B), len(slot_C) - 1)
    return np.where(slot_C[at_B] == slot_B, chosen_C[at_B], -1)


def _near(
    reading: Reading,
    generation: Generation,
    user_U: Int64s,
    ad_A: Int64s,
    missing_S: Int64s,
    now_us: int,
) -> Means:
    """Means over the neighbours' vectors, for each missing (user, ad) number, which rise."""
    asking_Q = np.unique(missing_S // len(ad_A))  # places of the users that lack something
    records = reading.get(NEAREST, user_U[asking_Q])
    _, count_Q, near_K = nearest_of(records, generation.width)
    asker_K = np.repeat(asking_Q, count_Q)
    other_V, place_K = np.unique(near_K["user"], return_inverse=True)
    rows = rows_of(reading.get(VECTORS, other_V), generation)
    chosen_C, ad_C = _asked(rows, generation, ad_A, now_us)
    # each neighbour's asked vectors, once for every user whose neighbour it is
    count_V = np.bincount(rows.owner_E[chosen_C], minlength=len(other_V))
    begin_V = np.cumsum(count_V) - count_V
    count_K = count_V[place_K]
    of_H = np.repeat(np.arange(len(place_K)), count_K)
    first_K = np.cumsum(count_K) - count_K
    hit_H = begin_V[place_K][of_H] + np.arange(len(of_H)) - first_K[of_H]
    slot_H = asker_K[of_H] * len(ad_A) + ad_C[hit_H]
    at_H = np.minimum(np.searchsorted(missing_S, slot_H), len(missing_S) - 1)
    real_H = missing_S[at_H] == slot_H
    entry_H = chosen_C[hit_H[real_H]]
    return near_means(
        count=len(missing_S),
        row_H=at_H[real_H],
        cosine_H=near_K["cosine"][of_H[real_H]],
        age_us_H=now_us - rows.rows_E["written_at"][entry_H],
        z_Hd=rows.rows_E["z"][entry_H],
        ttl_us=generation.ttl_us,
    )


def need_generation(current: Current | None) -> Generation:
    """The generation in use, or `DataError`."""
    if current is None:
        raise DataError("the store is empty; run the publish stage first")
    return current.generation
