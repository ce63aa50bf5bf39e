from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.mixing.sequences import (
    Sequences,
    build_sequences,
    extend_sequences,
    group_rows,
    read_sequences,
    write_sequences,
)
from pipeline.mixing.visibility import History, Matches, Moments

FAR = 2**62  # times near the limit: composite keys must not overflow
WIDE = [0, 5, 200, -40_000, FAR]  # one for each width of a stored column
EVENT = st.tuples(
    st.integers(0, 4),
    st.sampled_from([0, 1, 2, 3, 50, 51, FAR]),
    st.integers(0, 2),
    st.integers(0, 1),
)
QUERY = st.tuples(st.integers(0, 5), st.sampled_from([0, 1, 2, 3, 4, 50, 52, 60, FAR, FAR + 9]))


def sequences_of(events: list[tuple[int, int, int, int]]) -> Sequences:
    rows = np.array(events, dtype=np.int64).reshape(-1, 4)
    columns: dict[str, np.ndarray] = {
        "ts_us": rows[:, 1],
        "ad_id": rows[:, 2],
        "category_id": np.arange(len(rows)),
        "surface": np.zeros(len(rows), dtype=np.int16),
        "action": rows[:, 3].astype(np.int8),
    }
    return build_sequences(rows[:, 0], columns)


@settings(max_examples=150, deadline=None)
@given(
    events=st.lists(EVENT, max_size=30),
    queries=st.lists(QUERY, min_size=1, max_size=10),
    delay=st.sampled_from([0, 1, 10]),
)
def test_visible_events_are_exactly_those_before_the_moment(
    events: list[tuple[int, int, int, int]], queries: list[tuple[int, int]], delay: int
) -> None:
    sequences = sequences_of(events)
    user, ts = np.array(queries, dtype=np.int64).T
    start, end = History(sequences, delay).visible(Moments(user, ts))
    key = np.arange(len(queries)) % 3
    seen, acted = Matches(sequences, "ad_id", delay).counts(user, key, ts)
    for i, (who, when) in enumerate(queries):
        mine = [e for e in events if e[0] == who and e[1] + delay < when]
        assert end[i] - start[i] == len(mine)
        assert sorted(sequences.ts_us[start[i] : end[i]]) == sorted(e[1] for e in mine)
        assert (sequences.user_id[start[i] : end[i]] == who).all()
        same = [e for e in mine if e[2] == key[i]]
        assert seen[i] == len(same)
        assert acted[i] == sum(e[3] for e in same)


@settings(max_examples=60, deadline=None)
@given(events=st.lists(EVENT, max_size=30), begin=st.sampled_from([0, 2, 51]))
def test_extending_equals_rebuilding(events: list[tuple[int, int, int, int]], begin: int) -> None:
    for i, e in enumerate(events):
        events[i] = (e[0], e[1], i, e[3])  # ad_id tells events of one moment apart
    older = [e for e in events if e[1] < 50]
    newer = [e for e in events if e[1] >= 50]
    merged = extend_sequences(sequences_of(older), sequences_of(newer), begin)
    rebuilt = sequences_of([e for e in older if e[1] >= begin] + newer)
    assert merged.users.tolist() == rebuilt.users.tolist()
    assert merged.offsets.tolist() == rebuilt.offsets.tolist()
    for name in ("ts_us", "ad_id", "action"):
        assert merged.columns[name].tolist() == rebuilt.columns[name].tolist()


def files_of(sequences: Sequences, folder: Path) -> dict[str, bytes]:
    write_sequences(folder, sequences)
    return {p.name: p.read_bytes() for p in folder.iterdir()}


DAILY = st.tuples(st.sampled_from([0, 1, 2, FAR]), st.integers(0, 99), st.sampled_from(WIDE))


@settings(max_examples=60, deadline=None)
@given(
    days=st.lists(st.lists(DAILY, max_size=8), min_size=1, max_size=5), retention=st.integers(1, 3)
)
def test_day_after_day_writes_the_bytes_of_a_rebuild(
    days: list[list[tuple[int, int, int]]], retention: int
) -> None:
    events = [
        [(who, 100 * day + when, what, 0) for who, when, what in sorted(found, key=lambda e: e[1])]
        for day, found in enumerate(days)
    ]
    extended = sequences_of(events[0])
    for day in range(1, len(days)):
        begin = 100 * (day + 1 - retention)
        with TemporaryDirectory() as folder:
            write_sequences(Path(folder), extended)
            older = read_sequences(Path(folder), "impressions")
            extended = extend_sequences(older, sequences_of(events[day]), begin)
    rebuilt = sequences_of([e for day in events[-retention:] for e in day])
    for sequences in (extended, rebuilt):
        sequences.columns["category_id"] = sequences.columns["ad_id"]
    with TemporaryDirectory() as one, TemporaryDirectory() as other:
        assert files_of(extended, Path(one)) == files_of(rebuilt, Path(other))


@settings(max_examples=100, deadline=None)
@given(
    events=st.lists(EVENT, max_size=30),
    later=st.lists(EVENT, max_size=10),
    query=QUERY,
    delay=st.sampled_from([0, 1, 10]),
)
def test_events_from_the_moment_on_change_no_answer(
    events: list[tuple[int, int, int, int]],
    later: list[tuple[int, int, int, int]],
    query: tuple[int, int],
    delay: int,
) -> None:
    user, ts = (np.array([value]) for value in query)
    unseen = [e for e in later if e[1] + delay >= query[1]]
    seen = []
    for known in (events, events + unseen):
        sequences = sequences_of(known)
        start, end = History(sequences, delay).visible(Moments(user, ts))
        counts = Matches(sequences, "ad_id", delay).counts(user, np.array([1]), ts)
        shown = [sequences.columns[n][start[0] : end[0]].tolist() for n in ("ts_us", "ad_id")]
        seen.append((shown, [c.tolist() for c in counts]))
    assert seen[0] == seen[1]


def test_columns_are_stored_as_narrow_as_they_are(tmp_path: Path) -> None:
    for folder, most, kind in (("a", 127, np.int8), ("b", 128, np.int16), ("c", FAR, np.int64)):
        write_sequences(tmp_path / folder, sequences_of([(1, 5, most, 0), (1, 6, -1, 1)]))
        back = read_sequences(tmp_path / folder, "impressions")
        assert back.columns["ad_id"].dtype == kind
        assert back.columns["ad_id"].tolist() == [most, -1]
        assert back.ts_us.dtype == np.int64


def test_events_of_one_moment_keep_their_order() -> None:
    sequences = sequences_of([(1, 5, 0, 0), (0, 5, 1, 0), (1, 5, 2, 0), (1, 4, 3, 0)])
    assert sequences.users.tolist() == [0, 1]
    assert sequences.columns["ad_id"].tolist() == [1, 3, 0, 2]


def test_written_sequences_are_read_back(tmp_path: Path) -> None:
    sequences = sequences_of([(3, 5, 7, 1), (1, 2, 8, 0)])
    write_sequences(tmp_path / "shown", sequences)
    back = read_sequences(tmp_path / "shown", "impressions")
    assert back.users.tolist() == [1, 3]
    assert back.columns["ad_id"].tolist() == [8, 7]
    assert back.columns["action"].dtype == np.int8
    with pytest.raises(FileNotFoundError):
        read_sequences(tmp_path / "shown", "engagements")


@pytest.mark.parametrize("widest", [10, 2**40, 2**62])
def test_rows_are_grouped_as_two_stable_sorts_would(widest: int) -> None:
    rng = np.random.default_rng(3)
    ids = rng.choice(rng.integers(-widest, widest, 500), 20_000)
    ts = rng.integers(0, 50, len(ids))
    wanted = np.lexsort((ts, ids))  # numpy sorts by the last key first
    groups = group_rows(ids, ts)
    assert (groups.order == wanted).all()
    assert (groups.ids == np.sort(list(set(ids.tolist())))).all()
    assert (np.repeat(groups.ids, np.diff(groups.offsets)) == ids[wanted]).all()
    assert (group_rows(ids).order == np.argsort(ids, kind="stable")).all()


def test_no_rows_make_no_groups() -> None:
    groups = group_rows(np.zeros(0, np.int64), np.zeros(0, np.int64))
    assert (len(groups.ids), groups.offsets.tolist(), len(groups.order)) == (0, [0], 0)
