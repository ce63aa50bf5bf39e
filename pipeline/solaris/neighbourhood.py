"""Who is near whom on a day: found once, from the vectors that serve as the day begins.

A user without a vector then is a stranger: its neighbours are the users with the most vectors, all
alike, since nothing is known of it but that it may see any ad. Suffixes: U users, R lookups, K
neighbours, d code width.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipeline.solaris.neighbours import NOBODY, nearest_users
from pipeline.solaris.store import Int64s

Float32s = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Neighbourhood:
    """Neighbours by place among all users, `NOBODY` for none; the last row is the stranger's."""

    place_UK: Int64s
    cosine_UK: Float32s

    def of(self, place_R: Int64s) -> tuple[Int64s, Float32s]:
        """Places and cosines (R, K); a place of -1, an unknown user, is a stranger's."""
        return self.place_UK[place_R], self.cosine_UK[place_R]


def neighbourhood(embedding_Ud: Float32s, vectors_U: Int64s, count: int) -> Neighbourhood:
    """The `count` nearest of each user with vectors, and the strangers' neighbours for the others.

    `vectors_U` counts the vectors that serve. A user without any has a zero embedding.
    """
    place_UK, cosine_UK = nearest_users(embedding_Ud, count)
    stranger_K = np.full(count, NOBODY)
    busiest = np.argsort(-vectors_U, kind="stable")[: min(count, int((vectors_U > 0).sum()))]
    stranger_K[: len(busiest)] = busiest
    likeness_K = (stranger_K != NOBODY).astype(np.float32)
    alone_U = (place_UK == NOBODY).all(axis=1)
    place_UK[alone_U], cosine_UK[alone_U] = stranger_K, likeness_K
    return Neighbourhood(
        place_UK=np.concatenate([place_UK, stranger_K[None]]),
        cosine_UK=np.concatenate([cosine_UK, likeness_K[None]]),
    )
