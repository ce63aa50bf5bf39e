"""The bytes of a user's vectors and of its neighbours, packed and read without loops over vectors.

A record begins with the CRC-32 of the rest, so that damage is found when it is read. Suffixes:
N vectors, U users, E stored vectors of the users read, S slots, K neighbours, d code width.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final
from zlib import crc32

import numpy as np
import numpy.typing as npt

from pipeline.solaris.neighbours import NOBODY
from pipeline.solaris.serving import Means, decayed_means
from pipeline.solaris.store import RECENT, CorruptError, Generation, Int64s, Vectors

HEAD_BYTES: Final = 4  # the checksum
NEIGHBOUR: Final = np.dtype([("user", "<i8"), ("cosine", "<f4")])


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Vectors of several users: by user in the order asked for, and by ad within a user."""

    begins_U: Int64s  # where a user's vectors begin; as the next one's where there are none
    rows_E: npt.NDArray[np.void]

    @cached_property
    def owner_E(self) -> Int64s:
        """The place of each vector's user."""
        count_U = np.diff(self.begins_U, append=len(self.rows_E))
        return np.repeat(np.arange(len(self.begins_U)), count_U)

    @cached_property
    def ad_E(self) -> Int64s:
        """Their ads."""
        return self.rows_E["ad"].astype(np.int64)

    @cached_property
    def written_at_E(self) -> Int64s:
        """When they were written, in microseconds."""
        return self.rows_E["written_at"].astype(np.int64)

    @property
    def z_Ed(self) -> npt.NDArray[np.generic]:
        """Their codes, as stored."""
        codes: npt.NDArray[np.generic] = self.rows_E["z"]
        return codes

    def vectors(self, user_U: Int64s) -> Vectors:
        """The same as columns."""
        return Vectors(
            user_N=user_U[self.owner_E],
            ad_N=self.ad_E,
            written_at_N=self.written_at_E,
            score_N=self.rows_E["score"].astype(np.float32),
            z_Nd=self.z_Ed,
        )


@lru_cache
def layout_of(dtype: str, width: int) -> np.dtype[np.void]:
    """One stored vector: little-endian, no padding."""
    code = np.dtype(dtype).newbyteorder("<")
    return np.dtype([("ad", "<i8"), ("written_at", "<i8"), ("score", "<f4"), ("z", code, (width,))])


def pack_users(vectors: Vectors, generation: Generation) -> tuple[Int64s, list[bytes], Rows]:
    """Users, a record for each, and what is in them, of vectors sorted by (user, ad)."""
    rows_E = np.zeros(len(vectors), dtype=layout_of(generation.dtype, generation.width))
    rows_E["ad"] = vectors.ad_N
    rows_E["written_at"] = vectors.written_at_N
    rows_E["score"] = vectors.score_N
    rows_E["z"] = vectors.z_Nd
    new_N = np.ones(len(vectors), dtype=bool)
    new_N[1:] = vectors.user_N[1:] != vectors.user_N[:-1]
    begins_U = np.flatnonzero(new_N)
    bounds = (np.append(begins_U, len(rows_E)) * rows_E.dtype.itemsize).tolist()
    data = rows_E.tobytes()
    records = [_sealed(data[begin:end]) for begin, end in itertools.pairwise(bounds)]
    return vectors.user_N[begins_U], records, Rows(begins_U=begins_U, rows_E=rows_E)


def rows_of(records: list[bytes | None], generation: Generation) -> Rows:
    """What records hold, nothing for None; `CorruptError` when one is damaged."""
    layout = layout_of(generation.dtype, generation.width)
    bodies = [b"" if record is None else _opened(record, layout.itemsize) for record in records]
    ends = list(itertools.accumulate(len(body) // layout.itemsize for body in bodies))
    begins_U = np.array([0, *ends][: len(bodies)], dtype=np.int64)
    return Rows(begins_U=begins_U, rows_E=np.frombuffer(b"".join(bodies), dtype=layout))


def user_means(rows: Rows, generation: Generation, now_us: int) -> Means:
    """Decayed means (U) of users' `RECENT` newest vectors that serve at a time."""
    age_us_E = now_us - rows.written_at_E
    living_L = np.flatnonzero(generation.alive(rows.written_at_E, now_us))
    if len(rows.begins_U) == 1:  # a request: no need to tell users apart
        newest_S = living_L[age_us_E[living_L].argsort(kind="stable")[:RECENT]]
        return decayed_means(
            found_BS=np.ones((1, len(newest_S)), dtype=bool),
            age_us_BS=age_us_E[newest_S][None],
            z_BSd=rows.z_Ed[newest_S][None],
            ttl_us=generation.ttl_us,
        )
    owner_L = rows.owner_E[living_L]
    # newest first, equal ones by ad, which is the order they lie in
    order = np.lexsort((age_us_E[living_L], owner_L))
    living_L, owner_L = living_L[order], owner_L[order]
    count_U = np.bincount(owner_L, minlength=len(rows.begins_U))
    place_L = np.arange(len(order)) - (count_U.cumsum() - count_U)[owner_L]
    short_L = place_L < RECENT
    at = owner_L[short_L], place_L[short_L]
    found_US = np.zeros((len(count_U), RECENT), dtype=bool)
    age_us_US = np.zeros(found_US.shape, dtype=np.int64)
    z_USd = np.zeros((*found_US.shape, generation.width), dtype=rows.z_Ed.dtype)
    found_US[at] = True
    age_us_US[at] = age_us_E[living_L[short_L]]
    z_USd[at] = rows.z_Ed[living_L[short_L]]
    return decayed_means(
        found_BS=found_US, age_us_BS=age_us_US, z_BSd=z_USd, ttl_us=generation.ttl_us
    )


def pack_nearest(
    embedding_Ud: npt.NDArray[np.float32],
    user_V: Int64s,
    place_UK: Int64s,
    cosine_UK: npt.NDArray[np.float32],
) -> list[bytes]:
    """Records of users' embeddings and neighbours; places are those in `user_V`."""
    near_UK = np.zeros(place_UK.shape, dtype=NEIGHBOUR)
    near_UK["user"] = user_V[place_UK]
    near_UK["cosine"] = cosine_UK
    heads, there_UK = embedding_Ud.astype("<f4"), place_UK != NOBODY
    return [
        _sealed(head.tobytes() + near_K[there_K].tobytes())
        for head, near_K, there_K in zip(heads, near_UK, there_UK, strict=True)
    ]


def nearest_of(record: bytes, width: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.void]]:
    """A user's embedding (d) and its neighbours; `CorruptError` when the record is damaged."""
    body, size = _opened(record, 1), 4 * width
    if len(body) < size or (len(body) - size) % NEIGHBOUR.itemsize:
        raise CorruptError(f"a record of neighbours has {len(record)} bytes; publish again")
    return np.frombuffer(body[:size], dtype="<f4"), np.frombuffer(body[size:], dtype=NEIGHBOUR)


def _sealed(body: bytes) -> bytes:
    return crc32(body).to_bytes(HEAD_BYTES, "little") + body


def _opened(record: bytes, size: int) -> bytes:
    """The rest of a record whose checksum is right and whose length is a multiple of `size`."""
    body = record[HEAD_BYTES:]
    if not body or len(body) % size or crc32(body) != int.from_bytes(record[:HEAD_BYTES], "little"):
        raise CorruptError(
            f"a record of {len(record)} bytes of the store is damaged; publish again, "
            "or see `python -m pipeline store verify`"
        )
    return body
