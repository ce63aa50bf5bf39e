"""Event sequences of a bucket, sorted by (user, time): built from a day's rows, or extended.

A day is merged into the days before it without sorting them again.
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
    groups = group_rows(user_id, columns["ts_us"])
    return Sequences(
        users=groups.ids,
        offsets=groups.offsets,
        columns={n: c.take(groups.order, mode="clip") for n, c in columns.items()},
    )


def extend_sequences(older: Sequences, newer: Sequences, begin_us: int) -> Sequences:
    """Older events from `begin_us` on followed by newer ones; no newer event may be older."""
    kept = np.flatnonzero(older.ts_us >= begin_us)
    old_counts = np.diff(np.searchsorted(kept, older.offsets))
    users = np.union1d(older.users[old_counts > 0], newer.users)
    old_place = np.searchsorted(users, older.users[old_counts > 0])
    new_place = np.searchsorted(users, newer.users)
    old, new = np.zeros(len(users), np.int64), np.zeros(len(users), np.int64)
    old[old_place] = old_counts[old_counts > 0]
    new[new_place] = np.diff(newer.offsets)
    offsets = offsets_of(old + new)
    # each user's older events begin where the user does, the newer ones behind them
    old_at = np.arange(len(kept)) + np.repeat(offsets[:-1] - offsets_of(old)[:-1], old)
    new_at = np.arange(new.sum()) + np.repeat(offsets[:-1] + old - offsets_of(new)[:-1], new)
    all_kept = len(kept) == len(older.ts_us)
    columns = {}
    for name, column in older.columns.items():
        merged = np.empty(len(old_at) + len(new_at), dtype=column.dtype)
        merged[old_at] = column if all_kept else column[kept]
        merged[new_at] = newer.columns[name]
        columns[name] = merged
    return Sequences(users=users.astype(np.int64), offsets=offsets, columns=columns)


@dataclass(frozen=True, kw_only=True)
class Groups:
    """Rows by (id, time): those of `ids[i]` are `order[offsets[i]:offsets[i + 1]]`."""

    ids: np.ndarray  # int64, ascending and distinct
    offsets: np.ndarray  # int64, one more than ids
    order: np.ndarray  # int64, one per row


def group_rows(ids: np.ndarray, ts_us: np.ndarray | None = None) -> Groups:
    """Group rows by id; within an id by time, then as given. Without times, as given."""
    by_time = None
    if ts_us is not None and (ts_us[1:] < ts_us[:-1]).any():
        by_time = stable_sort(ts_us)[1]
        ids = ids.take(by_time, mode="clip")
    ascending, order = stable_sort(ids)
    ends = np.flatnonzero(ascending[1:] != ascending[:-1]) + 1
    offsets = np.concatenate([[0], ends, [len(ids)]]) if len(ids) else np.zeros(1, np.int64)
    return Groups(
        ids=ascending[offsets[:-1]],
        offsets=offsets,
        order=order if by_time is None else by_time.take(order, mode="clip"),
    )


def dense_codes(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distinct ids, ascending, and for each id its place among them; both int64."""
    groups = group_rows(ids)
    codes = np.empty(len(ids), dtype=np.int64)
    codes[groups.order] = np.repeat(np.arange(len(groups.ids)), np.diff(groups.offsets))
    return groups.ids, codes


def stable_sort(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Integers ascending, and the stable order that sorts them; both int64.

    Value and row share one number where both fit: numpy sorts plain numbers with vector
    instructions, several times faster than it finds an order.
    """
    bits = len(values).bit_length()
    least = int(values.min()) if len(values) else 0
    if len(values) and (int(values.max()) - least) >> (63 - bits):
        order = np.argsort(values, kind="stable")
        return values[order].astype(np.int64), order
    both = values - np.int64(least)
    both <<= bits
    both += np.arange(len(values))
    both.sort()
    order = both & ((1 << bits) - 1)
    both >>= bits
    both += least
    return both, order


def offsets_of(counts: np.ndarray) -> np.ndarray:
    """Where each group begins, and at the end their sum; int64, one more than `counts`."""
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


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
