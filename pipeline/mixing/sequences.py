"""Event sequences of a bucket, sorted by (user, time): built from a day's rows, or extended.

Users become dense codes and codes are sorted by radix; a day is merged into the days before it
without sorting them again.
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

_MANY = 2_000_000  # rows from which counting is faster, the import of scipy included
_SPARSE = 8  # ids this many times wider than their number are sorted, denser ones are counted


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
    users, codes = dense_codes(user_id)
    order = order_of(codes, len(users), columns["ts_us"])
    return Sequences(
        users=users,
        offsets=offsets_of(np.bincount(codes, minlength=len(users))),
        columns={name: column[order] for name, column in columns.items()},
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


def dense_codes(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distinct ids, ascending (int64), and for each id its place among them (an integer)."""
    if not len(ids):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    least, most = int(ids.min()), int(ids.max())
    if most - least > _SPARSE * len(ids):
        users, codes = np.unique(ids, return_inverse=True)
        return users.astype(np.int64), codes.astype(np.int64)
    there = np.zeros(most - least + 1, dtype=bool)
    there[ids - least] = True
    code = np.cumsum(there) - 1
    narrow = np.int32 if len(code) < 2**31 else np.int64
    return np.flatnonzero(there) + least, code.astype(narrow)[ids - least]


def order_of(codes: np.ndarray, num_codes: int, ts_us: np.ndarray) -> np.ndarray:
    """The stable order by (code, time): times by merging runs, then codes by radix."""
    order = None
    if (ts_us[1:] < ts_us[:-1]).any():
        order = np.argsort(ts_us, kind="stable")
        codes = codes[order]
    by_code = _radix(codes, num_codes)
    return by_code if order is None else order[by_code]


def offsets_of(counts: np.ndarray) -> np.ndarray:
    """Where each group begins, and at the end their sum; int64, one more than `counts`."""
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def _radix(codes: np.ndarray, num_codes: int) -> np.ndarray:
    """Stable order of codes: few rows by numpy's 16-bit radix sort, many by counting."""
    if len(codes) >= _MANY:
        return _counted(codes, num_codes)
    order = np.argsort((codes & 0xFFFF).astype(np.uint16), kind="stable")
    if num_codes > 2**16:
        order = order[np.argsort((codes[order] >> 16).astype(np.uint16), kind="stable")]
    return order


def _counted(codes: np.ndarray, num_codes: int) -> np.ndarray:
    """Stable order of codes by one counting pass: the transpose of a matrix of one entry a row."""
    from scipy.sparse import csr_array  # half a second to import: only where it saves more

    narrow = np.int32 if len(codes) < 2**31 - 1 else np.int64
    one_a_row = np.arange(len(codes) + 1, dtype=narrow)
    nothing = np.zeros(len(codes), dtype=np.int8)
    matrix = csr_array(
        (nothing, codes.astype(narrow, copy=False), one_a_row), shape=(len(codes), num_codes)
    )
    order: np.ndarray = matrix.tocsc().indices
    return order


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
