"""Nearest users by the cosine of their embeddings, and what their vectors of an ad say together.

A user's embedding is the decayed mean of its recent vectors (`serving.decayed_means`). The same ad
over the nearest users stands in for a pair without a vector (arXiv 2604.12110); the weights are
ours. Suffixes: U users, K neighbours, B lookups, d code width.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
from usearch.index import Index

from pipeline.solaris.serving import Means, decayed_means

NOBODY: Final = -1
LINKS, EFFORT_ADD, EFFORT_SEARCH = 16, 64, 64  # HNSW; recall is tested at 32 of 2,000 users
CHUNK: Final = 10_000  # users at once: bounds the memory of a search

Float32s = npt.NDArray[np.float32]
Int64s = npt.NDArray[np.int64]


def nearest_users(embedding_Ud: Float32s, k: int) -> tuple[Int64s, Float32s]:
    """Places (U, k) of each user's nearest others and their cosines, the nearest first.

    `NOBODY` and 0 where there are fewer. A user whose embedding is zero has no neighbours and is
    none. The approximate index (HNSW) is built in order by one thread: equal inputs give equal
    lists.
    """
    count = len(embedding_Ud)
    place_UK = np.full((count, k), NOBODY, dtype=np.int64)
    cosine_UK = np.zeros((count, k), dtype=np.float32)
    norm_U = np.linalg.norm(embedding_Ud, axis=1)
    known_P = np.flatnonzero(norm_U > 0)
    if k == 0 or len(known_P) < 2:
        return place_UK, cosine_UK
    unit_Pd = (embedding_Ud[known_P] / norm_U[known_P, None]).astype(np.float32)
    width = min(k, len(known_P) - 1)
    for rows_C, found_CK in _searched(unit_Pd, width + 1):
        best_CK, score_CK = _others(unit_Pd, rows_C, found_CK, width)
        none_CK = best_CK == NOBODY
        place_UK[known_P[rows_C], :width] = np.where(none_CK, NOBODY, known_P[best_CK])
        cosine_UK[known_P[rows_C], :width] = np.where(none_CK, 0.0, score_CK)
    return place_UK, cosine_UK


def near_means(
    *,
    found_BK: npt.NDArray[np.bool_],
    cosine_BK: Float32s,
    age_us_BK: Int64s,
    z_BKd: npt.NDArray[np.generic],
    ttl_us: int,
) -> Means:
    """Means over neighbours' vectors of the asked ad, weighted by cosine and by age.

    A neighbour counts where it has a vector of the ad and its cosine is positive.
    """
    return decayed_means(
        found_BS=found_BK & (cosine_BK > 0),
        age_us_BS=age_us_BK,
        z_BSd=z_BKd,
        ttl_us=ttl_us,
        weight_BS=cosine_BK,
    )


def _searched(unit_Pd: Float32s, count: int) -> Iterator[tuple[Int64s, Int64s]]:
    """Rows, chunk by chunk, and the index's answers (C, count) to them, `NOBODY` for none."""
    index = Index(
        ndim=unit_Pd.shape[1],
        metric="cos",
        dtype="f32",
        connectivity=LINKS,
        expansion_add=EFFORT_ADD,
        expansion_search=max(EFFORT_SEARCH, count),
    )
    chunks = np.array_split(np.arange(len(unit_Pd)), -(-len(unit_Pd) // CHUNK))
    for rows_C in chunks:
        index.add(rows_C, unit_Pd[rows_C], threads=1)
    for rows_C in chunks:  # never one row alone, whose answer would have another shape
        found = index.search(unit_Pd[rows_C], count, threads=1)
        missing_CK = np.arange(count) >= np.reshape(found.counts, (-1, 1))
        yield rows_C, np.where(missing_CK, NOBODY, found.keys.astype(np.int64))


def _others(
    unit_Pd: Float32s, rows_C: Int64s, found_CK: Int64s, width: int
) -> tuple[Int64s, Float32s]:
    """What was found without the rows themselves, by falling exact cosine, equal ones by place."""
    cosine_CK = np.einsum("ckd,cd->ck", unit_Pd[found_CK], unit_Pd[rows_C])
    found_CK = np.where(found_CK == rows_C[:, None], NOBODY, found_CK)
    cosine_CK[found_CK == NOBODY] = -np.inf
    order_CK = np.lexsort((found_CK, -cosine_CK), axis=1)[:, :width]
    best_CK = np.take_along_axis(found_CK, order_CK, axis=1)
    return best_CK, np.take_along_axis(cosine_CK, order_CK, axis=1)
