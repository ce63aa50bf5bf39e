"""The Solaris store: publish a generation, compact it, walk it; `lookup` reads it.

A generation is written user by user: all vectors of a user are one record. When the last batch is
in, each user's nearest users are found once, over all, in order of user_id; one more record has
the neighbours of users who have none of their own. Suffixes: N pairs,
U users, K neighbours, E stored vectors, d code width.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from pipeline.solaris.neighbourhood import neighbourhood
from pipeline.solaris.neighbours import NOBODY
from pipeline.solaris.records import pack_nearest, pack_users, rows_of, user_means
from pipeline.solaris.store import (
    NEAREST,
    STRANGER,
    VECTORS,
    Current,
    Generation,
    Int64s,
    Shelf,
    Vectors,
    Writing,
    newest_of_pairs,
)

log = logging.getLogger(__name__)
USERS_AT_ONCE = 20_000  # bounds the memory of what is packed


class VectorStore:
    """Generations on a shelf. Times to live are honoured on read and by `compact`."""

    def __init__(self, shelf: Shelf) -> None:
        self.shelf = shelf

    def generation(self) -> Generation | None:
        """The generation in use, None in an empty store."""
        current = self.current()
        return current.generation if current else None

    def current(self) -> Current | None:
        """The generation in use and its number, None in an empty store."""
        return self.shelf.read(lambda reading: reading.current)

    def publish(self, generation: Generation, batches: Iterable[Vectors]) -> int:
        """Write a generation beside the one in use and switch to it; returns the vectors kept.

        A user's vectors must come in one batch. Of a pair's vectors the newest is kept. Nothing
        is written when the fingerprint is in use already or a newer day is.
        """
        with self.shelf.writing() as writing:
            used = self.current()
            if used and used.generation.fingerprint == generation.fingerprint:
                log.info("generation %s is in use already", generation.fingerprint[:12])
                return self.size()
            if used and used.generation.day > generation.day:
                day = used.generation.day
                log.info("day %s is in use, older %s is not stored", day, generation.day)
                return 0
            writing.drop(used.number if used else None)
            number = writing.begin(generation.as_of_us)
            kept = _write(writing, number, generation, batches)
            writing.switch(Current(number=number, generation=generation))
            writing.drop(number)
        return kept

    def compact(self, now_us: int) -> int:
        """Delete old generations, and vectors whose life ended by `now_us`; returns how many."""
        with self.shelf.writing() as writing:
            current = self.current()
            writing.drop(current.number if current else None)
            if current is None:
                return 0
            chunks = self.shelf.scan(current.number, VECTORS)
            return sum(_compact(writing, current, chunk, now_us) for chunk in chunks)

    def size(self) -> int:
        """Vectors of the generation in use."""
        current = self.current()
        if current is None:
            return 0
        chunks = self.shelf.scan(current.number, VECTORS)
        return sum(
            len(rows_of([r], current.generation).rows_E) for chunk in chunks for _, r in chunk
        )

    def content(self) -> Iterator[tuple[bytes, int, bytes]]:
        """Kind, user and record of all that the generation in use holds, in order of users."""
        current = self.current()
        for kind in (VECTORS, NEAREST):
            found = self.shelf.scan(current.number, kind) if current else iter(())
            for user, record in sorted(pair for chunk in found for pair in chunk):
                yield kind, user, record


def _write(
    writing: Writing, number: int, generation: Generation, batches: Iterable[Vectors]
) -> int:
    """Write the living vectors, then the users' neighbours; returns the vectors kept."""
    kept, parts = 0, []
    for batch in batches:
        living_N = batch.written_at_N + generation.ttl_us > generation.as_of_us
        vectors = newest_of_pairs(batch.take(living_N))
        for part in _by_users(vectors):
            user_U, records, rows = pack_users(part, generation)
            end_U = np.maximum.reduceat(part.written_at_N, rows.begins_U) + generation.ttl_us
            writing.put(number, VECTORS, user_U, records, end_U)
            kept += len(part)
            if generation.neighbours:
                alive_E = generation.alive(rows.written_at_E, generation.as_of_us)
                count_U = np.add.reduceat(alive_E.astype(np.int64), rows.begins_U)
                mean = user_means(rows, generation, generation.as_of_us)
                parts.append((user_U, mean.z_Bd, count_U, end_U))
    if parts:
        columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
        order = np.argsort(columns[0], kind="stable")  # whatever the batches, the same index
        _write_nearest(writing, number, generation, *(column[order] for column in columns))
    return kept


def _write_nearest(
    writing: Writing,
    number: int,
    generation: Generation,
    user_U: Int64s,
    embedding_Ud: npt.NDArray[np.float32],
    vectors_U: Int64s,
    end_U: Int64s,
) -> None:
    """Write the users' neighbours, and after them the strangers', whose embedding is zero."""
    near = neighbourhood(embedding_Ud, vectors_U, generation.neighbours)
    itself_UK = near.place_UK == np.arange(len(near.place_UK))[:, None]  # lacks what it asks for
    place_UK = np.where(itself_UK, NOBODY, near.place_UK)
    user_U = np.append(user_U, STRANGER)
    embedding_Ud = np.concatenate([embedding_Ud, np.zeros_like(embedding_Ud[:1])])
    end_U = np.append(end_U, end_U.max())
    for begin in range(0, len(user_U), USERS_AT_ONCE):
        some = slice(begin, begin + USERS_AT_ONCE)
        records = pack_nearest(embedding_Ud[some], user_U, place_UK[some], near.cosine_UK[some])
        writing.put(number, NEAREST, user_U[some], records, end_U[some])


def _by_users(vectors: Vectors) -> Iterator[Vectors]:
    """Vectors, sorted by user, in parts of whole users."""
    begins_U = np.flatnonzero(np.diff(vectors.user_N, prepend=vectors.user_N[:1] - 1))
    cuts = [*begins_U[::USERS_AT_ONCE], len(vectors)]
    for begin, end in itertools.pairwise(cuts):
        yield vectors.take(np.arange(begin, end))


def _compact(
    writing: Writing, current: Current, chunk: list[tuple[int, bytes]], now_us: int
) -> int:
    """Rewrite or delete the records of a chunk that hold expired vectors; returns how many."""
    generation = current.generation
    user_U = np.array([user for user, _ in chunk], dtype=np.int64)
    rows = rows_of([record for _, record in chunk], generation)
    living_E = rows.written_at_E + generation.ttl_us > now_us
    if living_E.all():
        return 0
    gone_U = np.setdiff1d(user_U, user_U[rows.owner_E[living_E]])
    for kind in (VECTORS, NEAREST):
        writing.delete(current.number, kind, gone_U)
    touched_U = np.setdiff1d(np.unique(user_U[rows.owner_E[~living_E]]), gone_U)
    kept_E = living_E & np.isin(user_U[rows.owner_E], touched_U)
    left = rows.vectors(user_U).take(kept_E)
    if len(left):
        order = np.lexsort((left.ad_N, left.user_N))
        touched_U, records, _ = pack_users(left.take(order), generation)
        writing.put(current.number, VECTORS, touched_U, records, None)  # the newest one stays
    return int((~living_E).sum())
