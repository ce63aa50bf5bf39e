"""What a Solaris store holds, and what its shelf must do: generations of vectors by user.

A *generation* is one complete batch of verified vectors (one epoch, one day). It is written
beside the one in use and takes its place in one step; readers see the old one or the new one.
All vectors of a user are one record, because a request asks for one user and many ads; a second
record holds the user's embedding and nearest users. Suffixes: N pairs, U users, K neighbours, d
code width.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from pipeline.run.codec import from_dict, to_dict
from pipeline.run.errors import DataError, RetryError

Int64s = npt.NDArray[np.int64]
T = TypeVar("T")
Kind = Literal[b"u", b"n"]
VECTORS: Final[Kind] = b"u"  # all vectors of a user
NEAREST: Final[Kind] = b"n"  # a user's embedding and neighbours
STRANGER: Final = -(2**63)  # the user whose neighbours are those of all without any
RECENT: Final = 16  # vectors that make a user's mean
LAYOUT: Final = 2  # of the records; a store of another layout is replaced, not read
FaultKind = Literal["down", "slow", "full", "corrupt"]


class StoreError(RetryError):
    """The store cannot answer now; `kind` says how."""

    def __init__(self, kind: FaultKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class CorruptError(DataError):
    """The store answered bytes that nobody wrote."""


@dataclass(frozen=True, kw_only=True)
class Generation:
    """What is known of a batch: enough to serve it without the run that wrote it.

    `fingerprint` identifies the vectors; `width` codes of `dtype` ("int8" or "float32") make a
    vector. A vector written at w serves times t with w + delay_us <= t < w + ttl_us. Vectors
    whose life ended by `as_of_us` were left out. `neighbours`: how many nearest users each user
    has a list of.
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
    neighbours: int = 0

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
class Current:
    """What a shelf says of the generation in use: its number there, and what it is."""

    number: int
    generation: Generation


class Reading(Protocol):
    """One moment of a shelf: every answer comes from the same generation."""

    current: Current | None

    def get(self, kind: Kind, user_N: Int64s) -> list[bytes | None]:
        """Users' records of the generation in use, in the order of the users."""


class Writing(Protocol):
    """A shelf in the hands of its one writer."""

    def begin(self, as_of_us: int) -> int:
        """A number that no generation has; the ends of its records count from `as_of_us`."""

    def put(
        self, number: int, kind: Kind, user_U: Int64s, records: list[bytes], end_us_U: Int64s | None
    ) -> None:
        """Store records of a generation, replacing those there.

        Nobody needs them from `end_us_U` on; None when these times stay as they are.
        """

    def switch(self, current: Current) -> None:
        """Make a generation the one in use, in one step, when all of it is safe."""

    def delete(self, number: int, kind: Kind, user_U: Int64s) -> None:
        """Delete records of a generation."""

    def drop(self, keep: int | None) -> None:
        """Delete every generation but one."""


class Shelf(Protocol):
    """Where the bytes of a store lie. One writer, many readers."""

    def read(self, ask: Callable[[Reading], T]) -> T:
        """The answer to what `ask` reads, all of it at one moment; `ask` may be called again."""

    def writing(self) -> AbstractContextManager[Writing]:
        """The right to write; `RetryError` when another writer keeps it for too long."""

    def scan(self, number: int, kind: Kind) -> Iterator[list[tuple[int, bytes]]]:
        """Users and records of a generation, in chunks."""

    def used_bytes(self) -> int:
        """Bytes that the shelf takes."""


@lru_cache(maxsize=8)  # every request asks
def current_of(text: bytes | None) -> Current | None:
    """What a shelf keeps of its generation in use; None when there is none that can be read."""
    if text is None:
        return None
    try:
        record = json.loads(text)
    except ValueError:
        raise CorruptError(
            "the store's entry of its generation in use is no JSON; publish again"
        ) from None
    if record.pop("layout", None) != LAYOUT:
        return None
    return from_dict(Current, record)


def text_of(current: Current) -> bytes:
    """The inverse of `current_of`."""
    return json.dumps({"layout": LAYOUT, **to_dict(current)}, sort_keys=True).encode()


def newest_of_pairs(vectors: Vectors) -> Vectors:
    """Each pair's newest vector, sorted by (user, ad)."""
    order = np.lexsort((vectors.written_at_N, vectors.ad_N, vectors.user_N))
    user_N, ad_N = vectors.user_N[order], vectors.ad_N[order]
    last_N = np.ones(len(order), dtype=bool)
    last_N[:-1] = (user_N[1:] != user_N[:-1]) | (ad_N[1:] != ad_N[:-1])
    return vectors.take(order[last_N])
