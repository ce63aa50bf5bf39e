"""Nearest users by the cosine of their embeddings, and what their vectors of an ad say together.

A user's embedding is the decayed mean of its recent vectors (`serving.decayed_means`). The same ad
over the nearest users stands in for a pair without a vector (arXiv 2604.12110); the weights are
ours. Suffixes: U users, K neighbours, H hits, B lookups, d code width.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, cast

import numpy as np
import numpy.typing as npt
from usearch.index import BatchMatches, Index

from pipeline.loopfm.compress import unpack
from pipeline.solaris.serving import Means, no_means

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
    count: int,
    row_H: Int64s,
    cosine_H: Float32s,
    age_us_H: Int64s,
    z_Hd: npt.NDArray[np.generic],
    ttl_us: int,
) -> Means:
    """Means (`count`) of neighbours' vectors of the asked ad, weighted by cosine x exp(-2 age/ttl).

    Hit H says that a neighbour of lookup `row_H`'s user, at cosine `cosine_H`, has a vector of the
    lookup's ad: the one that an exact lookup of (neighbour, ad) gives. A cosine of zero or less
    does not count.
    """
    order_H = np.argsort(row_H, kind="stable")
    order_H = order_H[cosine_H[order_H] > 0]
    row_H, age_us_H = row_H[order_H], age_us_H[order_H]
    means = no_means(count, z_Hd.shape[1])
    if not len(row_H):
        return means
    weight_H = cosine_H[order_H] * np.exp(-2.0 * age_us_H / ttl_us)
    begins = np.flatnonzero(np.diff(row_H, prepend=-1))
    total = np.add.reduceat(weight_H, begins)
    share_H = weight_H / np.repeat(total, np.diff(begins, append=len(row_H)))
    found = row_H[begins]
    means.found_B[found] = True
    means.age_s_B[found] = np.add.reduceat(share_H * age_us_H, begins) / 1e6
    means.z_Bd[found] = np.add.reduceat(share_H[:, None] * unpack(z_Hd[order_H]), begins)
    return means


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
        found = cast(BatchMatches, index.search(unit_Pd[rows_C], count, threads=1))
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
