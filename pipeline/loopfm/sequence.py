"""Which of a user's events come before an impression: stored once, found by place.

The rule of visibility follows arXiv 2605.29280: a representation enters only strictly before the
impression, and never the impression's own. Suffixes: N stored events, R rows that ask, U owners,
T distinct times.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class OwnerIndex:
    """Events grouped by owner (a user, an ad, a pair) and sorted by time, ready to be searched.

    `order_N` sorts the events by (owner, time), stable; `keys_N` are the sorted search keys.
    """

    order_N: Int64s
    keys_N: Int64s
    owners_U: npt.NDArray[np.generic]
    times_T: Int64s

    def ends(self, owner_R: npt.NDArray[np.generic], before_us_R: Int64s) -> Int64s:
        """Per row the position (in `order_N`) after the owner's last event with time < before."""
        return np.searchsorted(self.keys_N, self._keys(owner_R, before_us_R)).astype(np.int64)

    def begins(self, owner_R: npt.NDArray[np.generic]) -> Int64s:
        """Per row the position of the owner's first event."""
        first_R = np.full(len(owner_R), np.iinfo(np.int64).min)
        return np.searchsorted(self.keys_N, self._keys(owner_R, first_R)).astype(np.int64)

    def _keys(self, owner_R: npt.NDArray[np.generic], before_us_R: Int64s) -> Int64s:
        # Doubled codes leave the odd ones to unknown owners, whose ranges are therefore empty.
        code_R = np.searchsorted(self.owners_U, owner_R)
        found_R = code_R < len(self.owners_U)
        found_R[found_R] = self.owners_U[code_R[found_R]] == owner_R[found_R]
        slot_R = np.where(found_R, 2 * code_R + 1, 2 * code_R)
        rank_R = np.searchsorted(self.times_T, before_us_R)
        return slot_R * (len(self.times_T) + 1) + rank_R


def index_by_owner(owner_N: npt.NDArray[np.generic], ts_us_N: Int64s) -> OwnerIndex:
    """Sort events by (owner, time); equal ones keep their order.

    Times are replaced by their ranks, so that one int64 key holds owner and time of any span.
    """
    owners_U, code_N = np.unique(owner_N, return_inverse=True)
    times_T, rank_N = np.unique(ts_us_N, return_inverse=True)
    keys_N = (2 * code_N.astype(np.int64) + 1) * (len(times_T) + 1) + rank_N
    order_N = np.argsort(keys_N, kind="stable")
    return OwnerIndex(order_N=order_N, keys_N=keys_N[order_N], owners_U=owners_U, times_T=times_T)


def last_spans(
    index: OwnerIndex, owner_R: npt.NDArray[np.generic], before_us_R: Int64s, length: int
) -> tuple[Int64s, Int64s]:
    """Per row the places [begin, end) in `order_N` of its owner's last `length` events before."""
    end_R = index.ends(owner_R, before_us_R)
    return np.maximum(index.begins(owner_R), end_R - length), end_R
