"""The read path: what a store serves for the pairs of a request, all of one moment.

The pair's field: the exact vector, else the mean of the neighbours' vectors of the same ad, else
none; the user's field: the mean of its recent ones. A serving process calls this through
`degraded.Lookups`, which never raises. Suffixes: B lookups, U users, A ads asked for, E stored
vectors, C chosen ones, H hits, d code width.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from pipeline.run.errors import DataError
from pipeline.solaris.neighbours import near_means
from pipeline.solaris.records import Rows, nearest_of, rows_of, user_means
from pipeline.solaris.serving import Means, Served, no_lookups, no_means, serve
from pipeline.solaris.store import NEAREST, STRANGER, VECTORS, Current, Generation, Int64s, Reading
from pipeline.solaris.vector_store import VectorStore


def lookup(store: VectorStore, user_B: Int64s, ad_B: Int64s, now_us: int) -> Served:
    """What the store serves for pairs at a time, all of one moment; `DataError` on an empty store.

    Meant for the candidates of one request: a user's vectors, and those of its neighbours where
    exact ones are missing, are read once for all its ads. Other batches go user by user.
    """

    def ask(reading: Reading) -> Served:
        if len(user_B) and (user_B == user_B[0]).all():
            return _serve_user(reading, user_B[:1], ad_B, now_us)
        served = no_lookups(len(user_B), need_generation(reading.current).width)
        for user in np.unique(user_B):
            rows_B = user_B == user
            part = _serve_user(reading, user_B[rows_B][:1], ad_B[rows_B], now_us)
            for field in fields(Served):
                getattr(served, field.name)[rows_B] = getattr(part, field.name)
        return served

    return store.shelf.read(ask)


def need_generation(current: Current | None) -> Generation:
    """The generation in use, or `DataError`."""
    if current is None:
        raise DataError("the store is empty; run the publish stage first")
    return current.generation


@dataclass(frozen=True, kw_only=True)
class Exact:
    """A user's vectors, and which of them answers each lookup: `entry_B` where `found_B`."""

    rows: Rows
    found_B: npt.NDArray[np.bool_]
    entry_B: Int64s

    def of(self, values_E: np.ndarray) -> np.ndarray:
        """The lookups' values (B, ...); zeros for a user without vectors."""
        if not len(values_E):
            return np.zeros((len(self.entry_B), *values_E.shape[1:]), dtype=values_E.dtype)
        return values_E[self.entry_B]


def exact(reading: Reading, user_U: Int64s, ad_B: Int64s, now_us: int) -> Exact:
    """The vectors of one user's pairs that serve at a time; `DataError` on an empty store."""
    generation = need_generation(reading.current)
    rows = rows_of(reading.get(VECTORS, user_U), generation)
    entry_B, found_B = _find(rows.ad_E, ad_B)
    if found_B.any():
        found_B &= generation.alive(rows.written_at_E, now_us)[entry_B]
    return Exact(rows=rows, found_B=found_B, entry_B=entry_B)


def _serve_user(reading: Reading, user_U: Int64s, ad_B: Int64s, now_us: int) -> Served:
    """What one user's lookups get."""
    generation = need_generation(reading.current)
    own = exact(reading, user_U, ad_B, now_us)
    near = no_means(len(ad_B), generation.width)
    if generation.neighbours and not own.found_B.all():
        near = _near(reading, generation, user_U, ad_B, ~own.found_B, now_us)
    mean = user_means(own.rows, generation, now_us)
    return serve(
        found_B=own.found_B,
        age_us_B=now_us - own.of(own.rows.written_at_E),
        z_Bd=own.of(own.rows.z_Ed),
        near=near,
        user=Means(
            found_B=mean.found_B.repeat(len(ad_B)),
            age_s_B=mean.age_s_B.repeat(len(ad_B)),
            z_Bd=mean.z_Bd.repeat(len(ad_B), axis=0),
        ),
    )


def _near(
    reading: Reading,
    generation: Generation,
    user_U: Int64s,
    ad_B: Int64s,
    missing_B: np.ndarray,
    now_us: int,
) -> Means:
    """Means over the vectors of the user's neighbours, or of strangers', where exact ones miss."""
    record, strangers = reading.get(NEAREST, np.append(user_U, STRANGER))
    record = record or strangers
    if record is None:
        return no_means(len(ad_B), generation.width)
    _, near = nearest_of(record, generation.width)
    rows = rows_of(reading.get(VECTORS, near["user"]), generation)
    ad_A, place_M = np.unique(ad_B[missing_B], return_inverse=True)
    place_E, wanted_E = _find(ad_A, rows.ad_E)
    wanted_E &= generation.alive(rows.written_at_E, now_us)
    hit_H = np.flatnonzero(wanted_E)
    means = near_means(
        count=len(ad_A),
        row_H=place_E[hit_H],
        cosine_H=near["cosine"][rows.owner_E[hit_H]],
        age_us_H=now_us - rows.written_at_E[hit_H],
        z_Hd=rows.z_Ed[hit_H],
        ttl_us=generation.ttl_us,
    )
    found = no_means(len(ad_B), generation.width)
    found.found_B[missing_B] = means.found_B[place_M]
    found.age_s_B[missing_B] = means.age_s_B[place_M]
    found.z_Bd[missing_B] = means.z_Bd[place_M]
    return found


def _find(sorted_A: Int64s, asked_B: Int64s) -> tuple[Int64s, np.ndarray]:
    """Places of what is asked in a sorted array, and whether it is there."""
    if not len(sorted_A):
        return np.zeros(len(asked_B), dtype=np.int64), np.zeros(len(asked_B), dtype=bool)
    place_B = np.minimum(sorted_A.searchsorted(asked_B), len(sorted_A) - 1)
    return place_B, sorted_A[place_B] == asked_B
