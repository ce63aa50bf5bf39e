"""What a Solaris store does, whatever holds it: generations of vectors, read by pair and by user.

A *generation* is one complete batch of verified vectors (one epoch, one day). It is written
beside the one in use and takes its place in one step; readers see the old one or the new one.
Suffixes: N pairs, B lookups, d code width, S entries of a user's recent list.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
RECENT: Final = 16  # entries of a user's recent list


@dataclass(frozen=True, kw_only=True)
class Generation:
    """What is known of a batch: enough to serve it without the run that wrote it.

    `fingerprint` identifies the vectors; `width` codes of `dtype` ("int8" or "float32") make a
    vector. A vector written at w serves times t with w + delay_us <= t < w + ttl_us. Vectors
    whose life ended by `as_of_us` were left out.
    """

    fingerprint: str
    epoch: str
    day: str
    fm_cut_us: int
    as_of_us: int
    ttl_us: int
    delay_us: int
    width: int
    dtype: str

    def alive(self, written_at_N: Int64s, now_us: Int64s | int) -> npt.NDArray[np.bool_]:
        """True where a vector may be served at `now_us`."""
        return (written_at_N + self.delay_us <= now_us) & (now_us < written_at_N + self.ttl_us)


@dataclass(frozen=True, kw_only=True)
class Vectors:
    """Rows to store: `z_Nd` in the stored type, `written_at_N` in microseconds."""

    user_N: Int64s
    ad_N: Int64s
    written_at_N: Int64s
    score_N: npt.NDArray[np.float32]
    z_Nd: npt.NDArray[np.generic]

    def __len__(self) -> int:
        return len(self.user_N)

    def take(self, index: npt.NDArray[np.integer] | npt.NDArray[np.bool_]) -> Vectors:
        """The chosen rows."""
        return Vectors(
            user_N=self.user_N[index],
            ad_N=self.ad_N[index],
            written_at_N=self.written_at_N[index],
            score_N=self.score_N[index],
            z_Nd=self.z_Nd[index],
        )


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """Answers to exact lookups; where `found_B` is false the other fields are zero."""

    found_B: npt.NDArray[np.bool_]
    written_at_B: Int64s
    score_B: npt.NDArray[np.float32]
    z_Bd: npt.NDArray[np.generic]


@dataclass(frozen=True, kw_only=True)
class RecentLists:
    """Users' newest vectors, newest first; slots where `found_BS` is false are zero."""

    found_BS: npt.NDArray[np.bool_]
    written_at_BS: Int64s
    z_BSd: npt.NDArray[np.generic]


class VectorStore(Protocol):
    """One writer, many readers. Times to live are honoured on read and by `compact`."""

    def generation(self) -> Generation | None:
        """The generation in use, None in an empty store."""

    def publish(self, generation: Generation, batches: Iterable[Vectors]) -> int:
        """Write a generation beside the one in use and switch to it; returns the vectors kept.

        A user's vectors must come in one batch. Of a pair's vectors the newest is kept. Nothing
        is written when the fingerprint is in use already or a newer day is.
        """

    def pairs(self, user_B: Int64s, ad_B: Int64s, now_us: int) -> Pairs:
        """Exact lookups at a time."""

    def recent(self, user_B: Int64s, now_us: int) -> RecentLists:
        """Users' recent lists at a time."""

    def compact(self, now_us: int) -> int:
        """Delete vectors whose life ended by `now_us` and old generations; returns how many."""


def newest_of_pairs(vectors: Vectors) -> Vectors:
    """Each pair's newest vector, sorted by (user, ad)."""
    order = np.lexsort((vectors.written_at_N, vectors.ad_N, vectors.user_N))
    user_N, ad_N = vectors.user_N[order], vectors.ad_N[order]
    last_N = np.ones(len(order), dtype=bool)
    last_N[:-1] = (user_N[1:] != user_N[:-1]) | (ad_N[1:] != ad_N[:-1])
    return vectors.take(order[last_N])


def recent_order(user_N: Int64s, ad_N: Int64s, written_at_N: Int64s) -> Int64s:
    """The order of recent lists: by user, newest first, equal times by ad."""
    return np.lexsort((ad_N, -written_at_N, user_N)).astype(np.int64)
