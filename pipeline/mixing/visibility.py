"""What was visible when: positions in event sequences, and counts of events that share a key.

An event is visible to a moment `t` when `event.ts + delay < t`. All answers are positions found by
one search of ascending keys in ascending keys: no loop over users.
"""

from __future__ import annotations

import numpy as np

from pipeline.mixing.sequences import Sequences, dense_codes, group_rows, offsets_of

_KEY_LIMIT = 2**62


class Moments:
    """(User, moment) questions, sorted by (user, time) once for however many event types."""

    def __init__(self, user_id: np.ndarray, ts_us: np.ndarray) -> None:
        groups = group_rows(user_id, ts_us)
        self.users, self.order = groups.ids, groups.order
        self.counts = np.diff(groups.offsets)
        self.ts_us = ts_us.take(self.order, mode="clip")

    def restored(self, found: np.ndarray) -> np.ndarray:
        """Answers in sorted order as answers in the order of the questions."""
        answers = np.empty_like(found)
        answers[self.order] = found
        return answers


class Search:
    """Finds how many events of a group were visible at a moment, for many questions at once.

    Events are given sorted by (group, time), with the offsets of the groups.
    """

    def __init__(self, offsets: np.ndarray, ts: np.ndarray, delay: int) -> None:
        groups, counts = np.arange(len(offsets) - 1), np.diff(offsets)
        first = int(ts.min()) if len(ts) else 0
        self.span = (int(ts.max()) - first if len(ts) else 0) + 2
        self.delay, self.begin = delay, first + delay
        self.times: np.ndarray | None = None
        if self.span * (len(groups) + 1) >= _KEY_LIMIT:
            # a key of group and time would overflow: times become their rank
            self.times = np.sort(ts)
            first, self.span, self.begin = 0, len(ts) + 1, 0
            ts = np.searchsorted(self.times, ts)
        self.keys = np.repeat(groups * self.span - first, counts)
        self.keys += ts

    def origin(self, code: np.ndarray) -> np.ndarray:
        """What is added to a moment (or its rank) to compare it with the keys of group `code`."""
        origin: np.ndarray = code * np.int64(self.span) - self.begin
        return origin

    def position(self, origin: np.ndarray, moment: np.ndarray) -> np.ndarray:
        """Place in the events after the last one of a group with time + delay < `moment`.

        Fast when the questions come in (group, time) order.
        """
        if self.times is None:
            asked = np.clip(moment, self.begin, self.begin + self.span - 1)
        else:
            asked = np.searchsorted(self.times, moment - self.delay)
        asked += origin
        if (asked[1:] >= asked[:-1]).all():
            return np.searchsorted(self.keys, asked)
        order = np.argsort(asked)  # searching in ascending order keeps to the cache
        found = np.empty(len(asked), dtype=np.int64)
        found[order] = np.searchsorted(self.keys, asked[order])
        return found


class History:
    """Which events of one type each (user, moment) sees."""

    def __init__(self, sequences: Sequences, delay_us: int) -> None:
        self.sequences = sequences
        self.search = Search(sequences.offsets, sequences.ts_us, delay_us)

    def visible(self, moments: Moments) -> tuple[np.ndarray, np.ndarray]:
        """Start and end of every question's visible events; 0, 0 for an unknown user."""
        place, known = find(self.sequences.users, moments.users)
        start = np.repeat(self.sequences.offsets[place] * known, moments.counts)
        # an unknown user takes the place of the next one, so that the codes ascend
        next_user = np.searchsorted(self.sequences.users, moments.users)
        origin = np.repeat(self.search.origin(next_user), moments.counts)
        end = self.search.position(origin, moments.ts_us)
        if not known.all():
            end *= np.repeat(known, moments.counts)
        return moments.restored(start), moments.restored(end)


class Matches:
    """How many visible events of a user share a key with the query."""

    def __init__(self, sequences: Sequences, key: str, delay_us: int) -> None:
        self.users = sequences.users
        self.keys, key_codes = dense_codes(sequences.columns[key])
        groups = group_rows(sequences.codes * max(len(self.keys), 1) + key_codes)
        self.pairs, self.begin = groups.ids, groups.offsets
        self.search = Search(self.begin, sequences.ts_us[groups.order], delay_us)
        self.acted = offsets_of(sequences.columns["action"][groups.order] == 1)

    def counts(
        self, user_id: np.ndarray, key: np.ndarray, ts_us: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Visible events with the same key, and those among them with action 1; float32."""
        user, user_known = find(self.users, user_id)
        place, key_known = find(self.keys, key)
        code, pair_known = find(self.pairs, user * max(len(self.keys), 1) + place)
        known = user_known & key_known & pair_known
        begin = self.begin[code]
        end = self.search.position(self.search.origin(code), ts_us)
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
