"""Event sequences of a bucket, sorted by (user, time): built from a day's rows, or extended.

A day is merged into the days before it without sorting them again.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

SOURCE_COLUMNS: Final = {
    "impressions": ("ts_us", "ad_id", "category_id", "surface", "action"),
    "engagements": ("ts_us", "item_id", "category_id", "surface", "action"),
}


@dataclass(frozen=True, kw_only=True)
class Sequences:
    """Events of all users of a bucket: user `users[i]` owns `offsets[i]:offsets[i + 1]`.

    `columns` holds one array per event column (`SOURCE_COLUMNS`), each as long as `ts_us`, of
    integers as wide as their values need.
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
        columns={n: _narrow(n, c).take(groups.order, mode="clip") for n, c in columns.items()},
    )


def extend_sequences(older: Sequences, newer: Sequences, begin_us: int) -> Sequences:
    """Older events from `begin_us` on followed by newer ones; no newer event may be older."""
    kept = older.ts_us >= begin_us
    all_kept = bool(kept.all())
    counts = np.diff(older.offsets if all_kept else offsets_of(kept)[older.offsets])
    old_users = older.users[counts > 0]
    users = group_rows(np.concatenate([old_users, newer.users])).ids
    shares = np.zeros((len(users), 2), dtype=np.int64)  # older and newer events of every user
    shares[np.searchsorted(users, old_users), 0] = counts[counts > 0]
    shares[np.searchsorted(users, newer.users), 1] = np.diff(newer.offsets)
    is_new = np.repeat(np.tile([False, True], len(users)), shares.ravel())
    is_old = ~is_new
    columns = {}
    for name, column in older.columns.items():
        added = newer.columns[name]
        merged = np.empty(len(is_new), dtype=np.result_type(column, added))
        merged[is_old] = column if all_kept else column[kept]
        merged[is_new] = added
        columns[name] = merged
    return Sequences(users=users, offsets=offsets_of(shares.sum(axis=1)), columns=columns)


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


def _narrow(name: str, column: np.ndarray) -> np.ndarray:
    """The same integers in the narrowest signed type; times keep 64 bits."""
    if name == "ts_us":
        return column
    low, high = (int(column.min()), int(column.max())) if len(column) else (0, 0)
    kinds = (np.int8, np.int16, np.int32)
    fits = (k for k in kinds if np.iinfo(k).min <= low and high <= np.iinfo(k).max)
    return column.astype(next(fits, np.int64), copy=False)


def write_sequences(folder: Path, sequences: Sequences) -> None:
    """One .npy file per column, as narrow as its values allow, the users and their offsets."""
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "users.npy", sequences.users, allow_pickle=False)
    np.save(folder / "offsets.npy", sequences.offsets, allow_pickle=False)
    for name, column in sequences.columns.items():
        np.save(
            folder / f"{name}.npy",
            _narrow(name, column),
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
