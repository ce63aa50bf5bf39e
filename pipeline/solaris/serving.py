"""What a student is given for a pair: a vector of the pair, and one of its user.

The *pair field* holds the exact vector, else the mean of the same ad's vectors over the nearest
users. The *user field* holds the mean of the user's recent vectors, each weighted by
exp(-age / (ttl / 2)). The replay and the read path share these few lines, so that they cannot
disagree. The order exact, user, neighbours, none follows arXiv 2604.12110; the two fields and the
weights are ours. Suffixes: B lookups, S slots, d code width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from pipeline.loopfm.compress import unpack

NONE, NEIGHBOURS, USER, EXACT = 0, 1, 2, 3
SOURCES: Final = ("none", "neighbours", "user", "exact")  # by code: the higher, the better


@dataclass(frozen=True, kw_only=True)
class Served:
    """`pair_B` (int8: `EXACT`, `NEIGHBOURS` or `NONE`) says what is in `z_Bd`; zeros without.

    `user_B` is true where the user field `user_z_Bd` holds something. Ages in seconds, 0 without a
    vector; a mean's age is the mean of its vectors' ages, with the same weights.
    """

    pair_B: npt.NDArray[np.int8]
    age_s_B: npt.NDArray[np.float32]
    z_Bd: npt.NDArray[np.float32]
    user_B: npt.NDArray[np.bool_]
    user_age_s_B: npt.NDArray[np.float32]
    user_z_Bd: npt.NDArray[np.float32]

    @property
    def source_B(self) -> npt.NDArray[np.int8]:
        """The best of what each lookup got, an index into `SOURCES`."""
        return np.maximum(self.pair_B, np.where(self.user_B, USER, NONE)).astype(np.int8)


@dataclass(frozen=True, kw_only=True)
class Means:
    """Means of stored vectors and of their ages; zeros where `found_B` is false."""

    found_B: npt.NDArray[np.bool_]
    age_s_B: npt.NDArray[np.float32]
    z_Bd: npt.NDArray[np.float32]


def decayed_means(
    *,
    found_BS: npt.NDArray[np.bool_],
    age_us_BS: npt.NDArray[np.int64],
    z_BSd: npt.NDArray[np.generic],
    ttl_us: int,
) -> Means:
    """Means over slots, weighted by exp(-2 age / ttl); slots that are not found do not count."""
    weight_BS = np.where(found_BS, np.exp(-2.0 * age_us_BS / ttl_us), 0.0)
    total_B = np.maximum(weight_BS.sum(axis=1), 1e-300)
    share_BS = weight_BS / total_B[:, None]
    z_Bd = np.einsum("bs,bsd->bd", share_BS, unpack(z_BSd).astype(np.float64))
    age_s_B = (share_BS * age_us_BS).sum(axis=1) / 1e6
    return Means(
        found_B=np.asarray(found_BS.any(axis=1)),
        age_s_B=age_s_B.astype(np.float32),
        z_Bd=z_Bd.astype(np.float32),
    )


def serve(
    *,
    found_B: npt.NDArray[np.bool_],
    age_us_B: npt.NDArray[np.int64],
    z_Bd: npt.NDArray[np.generic],
    near: Means,
    user: Means,
) -> Served:
    """The exact vector where `found_B`, else the neighbours' mean; the user's mean beside it."""
    spare_B = np.where(near.found_B, NEIGHBOURS, NONE)
    return Served(  # a mean that was not found is zero, and so is its age
        pair_B=np.where(found_B, EXACT, spare_B).astype(np.int8),
        age_s_B=np.where(found_B, age_us_B / 1e6, near.age_s_B).astype(np.float32),
        z_Bd=np.where(found_B[:, None], unpack(z_Bd), near.z_Bd),
        user_B=user.found_B,
        user_age_s_B=user.age_s_B,
        user_z_Bd=user.z_Bd,
    )


def no_means(count: int, width: int) -> Means:
    """Nothing found, `count` times."""
    return Means(
        found_B=np.zeros(count, dtype=bool),
        age_s_B=np.zeros(count, dtype=np.float32),
        z_Bd=np.zeros((count, width), dtype=np.float32),
    )


def no_lookups(count: int, width: int) -> Served:
    """`count` lookups that got nothing at all."""
    nothing = no_means(count, width)
    return serve(
        found_B=nothing.found_B,
        age_us_B=np.zeros(count, dtype=np.int64),
        z_Bd=nothing.z_Bd,
        near=nothing,
        user=nothing,
    )
