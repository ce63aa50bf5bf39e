"""Small generations, and what tests ask of a store."""

from __future__ import annotations

import numpy as np

from pipeline.solaris.lookup import lookup
from pipeline.solaris.serving import EXACT, NEIGHBOURS
from pipeline.solaris.store import Generation, Vectors
from pipeline.solaris.vector_store import VectorStore

HOUR = 3_600_000_000
AS_OF = 1_000 * HOUR
WIDTH = 4


def generation(name: str = "a", day: str = "2026-11-29", neighbours: int = 0) -> Generation:
    return Generation(
        fingerprint=name,
        epoch="e1",
        day=day,
        fm_cut_us=0,
        as_of_us=AS_OF,
        ttl_us=24 * HOUR,
        delay_us=HOUR // 30,
        width=WIDTH,
        dtype="int8",
        neighbours=neighbours,
    )


def vectors(user: list[int], ad: list[int], age_h: list[float], z: list[int]) -> Vectors:
    return Vectors(
        user_N=np.array(user),
        ad_N=np.array(ad),
        written_at_N=AS_OF - np.array([int(a * HOUR) for a in age_h]),
        score_N=np.array(z, dtype=np.float32) / 2,
        z_Nd=np.repeat(np.array(z, dtype=np.int8)[:, None], WIDTH, axis=1),
    )


def pair(store: VectorStore, user: int, ad: int, now: int = AS_OF) -> tuple[int, int | None]:
    """What the pair's field holds: where from, and the first code."""
    got = lookup(store, np.array([user]), np.array([ad]), now)
    found = got.pair_B[0] in (EXACT, NEIGHBOURS)
    return int(got.pair_B[0]), round(float(got.z_Bd[0, 0]) * 127) if found else None


def exact(store: VectorStore, user: int, ad: int, now: int = AS_OF) -> int | None:
    """The first code of an exact answer."""
    source, code = pair(store, user, ad, now)
    return code if source == EXACT else None
