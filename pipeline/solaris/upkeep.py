"""What a store holds, in figures, and whether all of it is sound. Suffixes: E vectors, U users."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from pipeline.loopfm.compress import is_broken
from pipeline.solaris.records import nearest_of, rows_of
from pipeline.solaris.store import NEAREST, STRANGER, VECTORS, CorruptError, Generation, Int64s
from pipeline.solaris.vector_store import VectorStore


def stats(store: VectorStore) -> dict[str, Any]:
    """Counts, bytes, the generation in use, and ages in hours at the end of its day."""
    current = store.current()
    found: dict[str, Any] = {"generation": None, "bytes": store.shelf.used_bytes()}
    if current is None:
        return found
    generation = current.generation
    counts: Counter[str] = Counter()
    written: list[Int64s] = []
    for chunk in store.shelf.scan(current.number, VECTORS):
        rows = rows_of([record for _, record in chunk], generation)
        counts["users"] += len(chunk)
        counts["record_bytes"] += sum(len(record) for _, record in chunk)
        written.append(rows.rows_E["written_at"].astype(np.int64))
    for chunk in store.shelf.scan(current.number, NEAREST):
        counts["users_with_neighbours"] += sum(user != STRANGER for user, _ in chunk)
        counts["record_bytes"] += sum(len(record) for _, record in chunk)
    written_E = np.concatenate([*written, np.zeros(0, dtype=np.int64)])
    age_h_E = (generation.as_of_us - written_E) / 3.6e9
    return found | {
        "generation": {"number": current.number, **vars(generation)},
        "vectors": len(written_E),
        **{name: counts[name] for name in ("users", "users_with_neighbours", "record_bytes")},
        "age_h": {
            f"p{q}": round(float(np.percentile(age_h_E, q)), 4)
            for q in ((0, 50, 90, 99, 100) if len(age_h_E) else ())
        },
    }


def verify(store: VectorStore) -> dict[str, int]:
    """Walk every record; how many there are, and faults by kind (none: all are sound).

    Faults: `damaged` records (length or checksum), vectors that are not `finite` or in range,
    `times` outside of the generation's, ads `unsorted` within a user, neighbours that are the user
    itself or out of order (`neighbours`), and lists of users without vectors (`strangers`).
    """
    current = store.current()
    counts: Counter[str] = Counter({"records": 0, "vectors": 0})
    if current is None:
        return dict(counts)
    users: set[int] = set()
    for chunk in store.shelf.scan(current.number, VECTORS):
        for user, record in chunk:
            users.add(user)
            counts += _vector_faults(record, current.generation)
    for chunk in store.shelf.scan(current.number, NEAREST):
        for user, record in chunk:
            counts += _neighbour_faults(user, record, current.generation)
            counts["strangers"] += user not in users and user != STRANGER
    return {k: v for k, v in counts.items() if v or k in ("records", "vectors")}


def faults(counts: dict[str, int]) -> int:
    """How many faults `verify` counted."""
    return sum(v for k, v in counts.items() if k not in ("records", "vectors"))


def _vector_faults(record: bytes, generation: Generation) -> Counter[str]:
    try:
        rows_E = rows_of([record], generation).rows_E
    except CorruptError:
        return Counter({"records": 1, "damaged": 1})
    written_at_E = rows_E["written_at"].astype(np.int64)
    sound_E = (written_at_E > 0) & (written_at_E <= generation.as_of_us)
    sound_E &= written_at_E + generation.ttl_us > generation.as_of_us
    broken_E = is_broken(rows_E["z"].astype(generation.dtype)) | ~np.isfinite(rows_E["score"])
    return Counter(
        {
            "records": 1,
            "vectors": len(rows_E),
            "finite": int(broken_E.sum()),
            "times": int((~sound_E).sum()),
            "unsorted": int((np.diff(rows_E["ad"]) <= 0).sum()),
        }
    )


def _neighbour_faults(user: int, record: bytes, generation: Generation) -> Counter[str]:
    try:
        embedding_d, near = nearest_of(record, generation.width)
    except CorruptError:
        return Counter({"records": 1, "damaged": 1})
    wrong = bool((near["user"] == user).any() or (np.diff(near["cosine"]) > 0).any())
    wrong |= len(np.unique(near["user"])) != len(near) or len(near) > generation.neighbours
    finite = np.isfinite(embedding_d).all() and np.isfinite(near["cosine"]).all()
    return Counter({"records": 1, "finite": int(not finite), "neighbours": int(wrong)})
