"""What a student is given for a pair: the exact vector, else its user's recent ones, else none.

The replay and the read path share these few lines, so that they cannot disagree. The fallback
is the mean of the user's recent vectors, each weighted by exp(-age / (ttl / 2)) (the order
exact, user, none follows arXiv 2604.12110; the weight is ours). Suffixes: B lookups, S slots,
d code width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from pipeline.loopfm.compress import unpack

NONE, USER, EXACT = 0, 1, 2
SOURCES: Final = ("none", "user", "exact")  # by code


@dataclass(frozen=True, kw_only=True)
class Served:
    """`source_B` (int8 index into `SOURCES`), `age_s_B` seconds (0 without a vector), `z_Bd`."""

    source_B: npt.NDArray[np.int8]
    age_s_B: npt.NDArray[np.float32]
    z_Bd: npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class UserMeans:
    """Users' decayed means and the weighted mean age; `found_B` false where there is none."""

    found_B: npt.NDArray[np.bool_]
    age_s_B: npt.NDArray[np.float32]
    z_Bd: npt.NDArray[np.float32]


def decayed_means(
    *,
    found_BS: npt.NDArray[np.bool_],
    age_us_BS: npt.NDArray[np.int64],
    z_BSd: npt.NDArray[np.generic],
    ttl_us: int,
) -> UserMeans:
    """Means over slots, weighted by exp(-2 age / ttl); slots that are not found do not count."""
    weight_BS = np.where(found_BS, np.exp(-2.0 * age_us_BS / ttl_us), 0.0)
    total_B = np.maximum(weight_BS.sum(axis=1), 1e-300)
    share_BS = weight_BS / total_B[:, None]
    z_Bd = np.einsum("bs,bsd->bd", share_BS, unpack(z_BSd).astype(np.float64))
    age_s_B = (share_BS * age_us_BS).sum(axis=1) / 1e6
    return UserMeans(
        found_B=np.asarray(found_BS.any(axis=1)),
        age_s_B=age_s_B.astype(np.float32),
        z_Bd=z_Bd.astype(np.float32),
    )


def serve(
    *,
    found_B: npt.NDArray[np.bool_],
    age_us_B: npt.NDArray[np.int64],
    z_Bd: npt.NDArray[np.generic],
    fallback: UserMeans,
) -> Served:
    """The exact vector where `found_B`, else the user's mean, else zeros."""
    source_B = np.where(found_B, EXACT, np.where(fallback.found_B, USER, NONE)).astype(np.int8)
    spare_B = source_B == USER
    age_s_B = np.where(found_B, age_us_B / 1e6, np.where(spare_B, fallback.age_s_B, 0.0))
    spare_Bd = np.where(spare_B[:, None], fallback.z_Bd, 0.0)
    return Served(
        source_B=source_B,
        age_s_B=age_s_B.astype(np.float32),
        z_Bd=np.where(found_B[:, None], unpack(z_Bd), spare_Bd).astype(np.float32),
    )
