"""The bytes of a stored vector and of a user's recent list, packed and read without loops.

Suffixes: N vectors, U users, S slots of a recent list, B values read.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pipeline.solaris.store import RECENT, Generation, Int64s, Vectors, recent_order


def record_of(generation: Generation) -> np.dtype[np.void]:
    """The layout of one stored vector: little-endian, no padding."""
    return np.dtype(
        [
            ("written_at", "<i8"),
            ("score", "<f4"),
            ("z", np.dtype(generation.dtype).newbyteorder("<"), (generation.width,)),
        ]
    )


def pack_records(vectors: Vectors, record: np.dtype[np.void]) -> npt.NDArray[np.void]:
    """Vectors as records (N,), in their order."""
    rows_N = np.zeros(len(vectors), dtype=record)
    rows_N["written_at"] = vectors.written_at_N
    rows_N["score"] = vectors.score_N
    rows_N["z"] = vectors.z_Nd
    return rows_N


def recent_lists(
    kept: Vectors, rows_N: npt.NDArray[np.void], record: np.dtype[np.void]
) -> tuple[Int64s, npt.NDArray[np.void]]:
    """Users (sorted) and their newest `RECENT` records (U, S), zeros where a list is shorter."""
    order = recent_order(kept.user_N, kept.ad_N, kept.written_at_N)
    users_U, first_U, count_U = np.unique(kept.user_N[order], return_index=True, return_counts=True)
    place_N = np.arange(len(order)) - np.repeat(first_U, count_U)
    owner_N = np.repeat(np.arange(len(users_U)), count_U)
    short_N = place_N < RECENT
    lists_US = np.zeros((len(users_U), RECENT), dtype=record)
    lists_US[owner_N[short_N], place_N[short_N]] = rows_N[order[short_N]]
    return users_U, lists_US


def gather(
    values: list[bytes | None], record: np.dtype[np.void]
) -> tuple[npt.NDArray[np.void], npt.NDArray[np.bool_]]:
    """Values as records (a writable copy), zeros where a value is missing."""
    blank = bytes(record.itemsize)
    rows = np.frombuffer(b"".join([value or blank for value in values]), dtype=record.base)
    found_B = np.fromiter((value is not None for value in values), dtype=bool, count=len(values))
    return rows.reshape(len(values), *record.shape).copy(), found_B
