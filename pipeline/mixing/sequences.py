"""Event sequences of a bucket, sorted by (user, time), and counts of what was visible when.

An event is visible to a moment `t` when `event.ts + delay < t`. All counts are positions found by
one sorted search over ranks: no loop over users, and no key that could overflow.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

COLUMN_TYPES: Final[dict[str, np.dtype]] = {
    "ts_us": np.dtype(np.int64),
    "ad_id": np.dtype(np.int64),
    "item_id": np.dtype(np.int64),
    "category_id": np.dtype(np.int64),
    "surface": np.dtype(np.int16),
    "action": np.dtype(np.int8),
}
SOURCE_COLUMNS: Final = {
    "impressions": ("ts_us", "ad_id", "category_id", "surface", "action"),
    "engagements": ("ts_us", "item_id", "category_id", "surface", "action"),
}


@dataclass(frozen=True, kw_only=True)
class Sequences:
    """Events of all users of a bucket: user `users[i]` owns `offsets[i]:offsets[i + 1]`.

    `columns` holds one array per event column (`SOURCE_COLUMNS`), each as long as `ts_us`.
    """

    users: np.ndarray  # int64, ascending
    offsets: np.ndarray  # int64, one more than users
    columns: dict[str, np.ndarray]

    @property
    def ts_us(self) -> np.ndarray:
        """Event times, microseconds UTC."""
        return self.columns["ts_us"]

    @property
    def user_id(self) -> np.ndarray:
        """The user of every event."""
        return np.repeat(self.users, np.diff(self.offsets))

    @property
    def codes(self) -> np.ndarray:
        """The place in `users` of every event's user."""
        return np.repeat(np.arange(len(self.users)), np.diff(self.offsets))


def build_sequences(user_id: np.ndarray, columns: dict[str, np.ndarray]) -> Sequences:
    """Sort events by (user, time); events of one moment keep their given order."""
    ts = columns["ts_us"]
    order = np.arange(len(ts))
    if len(ts) and (ts[1:] < ts[:-1]).any():
        order = np.argsort(ts, kind="stable")
    users, codes = np.unique(user_id[order], return_inverse=True)
    order = order[np.argsort(_narrow(codes, len(users)), kind="stable")]
    counts = np.bincount(codes, minlength=len(users))
    return Sequences(
        users=users.astype(np.int64),
        offsets=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        columns={name: column[order] for name, column in columns.items()},
    )


def extend_sequences(older: Sequences, newer: Sequences, begin_us: int) -> Sequences:
    """Older events from `begin_us` on followed by newer ones; no newer event may be older."""
    kept = older.ts_us >= begin_us
    user_id = np.concatenate([older.user_id[kept], newer.user_id])
    columns = {n: np.concatenate([c[kept], newer.columns[n]]) for n, c in older.columns.items()}
    users, codes = np.unique(user_id, return_inverse=True)
    order = np.argsort(_narrow(codes, len(users)), kind="stable")
    counts = np.bincount(codes, minlength=len(users))
    return Sequences(
        users=users,
        offsets=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        columns={n: c[order] for n, c in columns.items()},
    )


def write_sequences(folder: Path, sequences: Sequences) -> None:
    """One .npy file per column, the users and their offsets."""
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "users.npy", sequences.users, allow_pickle=False)
    np.save(folder / "offsets.npy", sequences.offsets, allow_pickle=False)
    for name, column in sequences.columns.items():
        np.save(
            folder / f"{name}.npy",
            column.astype(COLUMN_TYPES[name], copy=False),
            allow_pickle=False,
        )


def read_sequences(folder: Path, source: str) -> Sequences:
    """Memory-mapped sequences of an event type whose events come from `source`."""

    def load(name: str) -> np.ndarray:
        return np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False)

    return Sequences(
        users=load("users"),
        offsets=load("offsets"),
        columns={name: load(name) for name in SOURCE_COLUMNS[source]},
    )


class Search:
    """Finds how many events of a group happened before a moment, for many queries at once.

    Events are given sorted by (group, time), groups as ascending dense codes.
    """

    def __init__(self, codes: np.ndarray, ts: np.ndarray) -> None:
        # an event's rank is how many events lie before it in time, whatever their group
        self.times = np.sort(ts)
        ranks = np.searchsorted(self.times, ts)
        self.span = len(self.times) + 1
        self.keys = codes.astype(np.int64) * self.span + ranks

    def position(self, code: np.ndarray, before: np.ndarray) -> np.ndarray:
        """Place in the events after the last one of group `code` with time < `before`."""
        query = code.astype(np.int64) * self.span + np.searchsorted(self.times, before)
        # searching in ascending order keeps the walk through the keys in cache
        order = np.argsort(query)
        found = np.empty(len(query), dtype=np.int64)
        found[order] = np.searchsorted(self.keys, query[order])
        return found


class History:
    """Which events of one type each (user, moment) sees."""

    def __init__(self, sequences: Sequences, delay_us: int) -> None:
        self.sequences, self.delay_us = sequences, delay_us
        self.search = Search(sequences.codes, sequences.ts_us)

    def visible(self, user_id: np.ndarray, ts_us: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Start and end of every query's visible events; 0, 0 for an unknown user."""
        code, known = find(self.sequences.users, user_id)
        start = self.sequences.offsets[code] * known
        end = self.search.position(code, ts_us - self.delay_us) * known
        return start.astype(np.int64), np.maximum(start, end)


class Matches:
    """How many visible events of a user share a key with the query."""

    def __init__(self, sequences: Sequences, key: str, delay_us: int) -> None:
        self.users, self.delay_us = sequences.users, delay_us
        self.keys, key_codes = np.unique(sequences.columns[key], return_inverse=True)
        pairs = sequences.codes * max(len(self.keys), 1) + key_codes
        self.pairs, codes = np.unique(pairs, return_inverse=True)
        order = np.argsort(_narrow(codes, len(self.pairs)), kind="stable")
        self.search = Search(codes[order], sequences.ts_us[order])
        counts = np.bincount(codes, minlength=len(self.pairs))
        self.begin = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        acted = (sequences.columns["action"][order] == 1).astype(np.int64)
        self.acted = np.concatenate([[0], np.cumsum(acted)])

    def counts(
        self, user_id: np.ndarray, key: np.ndarray, ts_us: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Visible events with the same key, and those among them with action 1; float32."""
        user, user_known = find(self.users, user_id)
        place, key_known = find(self.keys, key)
        code, pair_known = find(self.pairs, user * max(len(self.keys), 1) + place)
        known = user_known & key_known & pair_known
        begin = self.begin[code]
        end = np.maximum(begin, self.search.position(code, ts_us - self.delay_us))
        seen = (end - begin) * known
        acted = (self.acted[end] - self.acted[begin]) * known
        return seen.astype(np.float32), acted.astype(np.float32)


def find(ascending: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Places of values in an ascending array, and whether they are in it (else place 0)."""
    if not len(ascending):
        return np.zeros(len(wanted), dtype=np.int64), np.zeros(len(wanted), dtype=bool)
    place = np.searchsorted(ascending, wanted)
    place = np.where(place < len(ascending), place, 0)
    known = ascending[place] == wanted
    return np.where(known, place, 0), known


def _narrow(codes: np.ndarray, count: int) -> np.ndarray:
    """Codes in the smallest unsigned type: stable sorts of 16 bits are radix sorts."""
    return codes.astype(np.uint16 if count <= 2**16 else np.uint32)
