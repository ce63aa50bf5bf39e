from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from model.student_sequence import History
from pipeline.loopfm.sequence import index_by_owner, last_spans

WIDTH = 3
event = st.tuples(st.integers(0, 4), st.integers(0, 30), st.integers(-127, 127))
events = st.lists(event, max_size=40)
asks = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 34)), min_size=1, max_size=20)


@dataclass(frozen=True)
class Means:
    """What a student that pools by the mean reads."""

    mean_Rd: np.ndarray
    count_R: np.ndarray


def means(
    stored: list[tuple[int, int, int]], rows: list[tuple[int, int]], length: int, delay: int
) -> Means:
    z = np.array([[v, -v, 1] for _, _, v in stored], dtype=np.float32).reshape(-1, WIDTH)
    owner, ts = (np.array([e[i] for e in stored], dtype=np.int64) for i in (0, 1))
    user, before = (np.array([r[i] for r in rows], dtype=np.int64) for i in (0, 1))
    index = index_by_owner(owner, ts)
    begin, end = (torch.from_numpy(p) for p in last_spans(index, user, before - delay, length))
    codes = torch.from_numpy(z[index.order_N])
    history = History(stored_NS=codes, begin_B=begin, end_B=end, length=length)
    _, mask = history.padded()
    pooled, some = history.with_means().pooled("mean")
    assert torch.equal(mask.any(1), some[:, 0])
    return Means(mean_Rd=pooled[:, 0].numpy(), count_R=mask.sum(1).numpy())


@settings(max_examples=200, deadline=None)
@given(events, asks, st.integers(1, 6), st.integers(0, 5))
def test_equals_the_definition(
    stored: list[tuple[int, int, int]], rows: list[tuple[int, int]], length: int, delay: int
) -> None:
    got = means(stored, rows, length, delay)
    in_time = sorted(stored, key=lambda e: e[1])
    for r, (user, ts) in enumerate(rows):
        seen = [v for u, t, v in in_time if u == user and t + delay < ts][-length:]
        assert got.count_R[r] == len(seen)
        expected = np.mean(seen) if seen else 0.0
        assert np.isclose(got.mean_Rd[r, 0], expected, atol=1e-4)


@settings(max_examples=100, deadline=None)
@given(events, asks, st.integers(0, 5), st.randoms(use_true_random=False))
def test_the_future_changes_nothing(
    stored: list[tuple[int, int, int]], rows: list[tuple[int, int]], delay: int, random: object
) -> None:
    for user, ts in rows:
        past = [e for e in stored if e[1] + delay < ts]
        whole = means(stored, [(user, ts)], 5, delay)
        only_past = means(past, [(user, ts)], 5, delay)
        assert np.array_equal(whole.mean_Rd, only_past.mean_Rd)
        assert np.array_equal(whole.count_R, only_past.count_R)


def test_own_vector_and_vectors_not_yet_available_are_invisible() -> None:
    got = means([(1, 10, 50)], [(1, 10), (1, 12), (1, 13)], length=5, delay=2)
    assert list(got.count_R) == [0, 0, 1]


def test_cold_users_have_an_empty_sequence() -> None:
    got = means([(2, 1, 50)], [(0, 9), (1, 9), (3, 9)], length=5, delay=0)
    assert not got.count_R.any()
    assert not got.mean_Rd.any()


def test_no_vectors_at_all() -> None:
    got = means([], [(0, 9)], length=5, delay=0)
    assert got.mean_Rd.shape == (1, WIDTH)
    assert list(got.count_R) == [0]


def test_index_keeps_equal_events_in_order() -> None:
    index = index_by_owner(np.array([5, 3, 5, 3]), np.array([1, 2, 1, 1]))
    assert list(index.order_N) == [3, 1, 0, 2]
