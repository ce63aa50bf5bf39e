from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.mixing.balance import assign_buckets, balanced_steps, even_bounds, window_parts
from pipeline.mixing.hashing import bucket_of

BUCKETS = 64


def skewed(users: int = 2_000, rows: int = 120_000) -> tuple[np.ndarray, np.ndarray]:
    """Users by row and visible events by row, in time order: log-normal activity, growing."""
    rng = np.random.default_rng(7)
    activity = np.exp(1.0 * rng.standard_normal(users))
    user = rng.choice(users, rows, p=activity / activity.sum())
    order = np.argsort(user, kind="stable")
    first = np.concatenate([[0], np.cumsum(np.bincount(user, minlength=users))[:-1]])
    earlier = np.empty(rows, dtype=np.int64)
    earlier[order] = np.arange(rows) - first[user[order]]
    return user, 20 + earlier


def steps_of(
    bucket: np.ndarray, cost: np.ndarray, world_size: int, batch: int
) -> list[list[np.ndarray]]:
    """Rows (places in time order) of every rank and step."""
    rank_B = assign_buckets(np.bincount(bucket, weights=cost, minlength=BUCKETS), world_size)
    moment = np.arange(len(cost)) // 100
    rows_T, cost_T = np.bincount(moment), np.bincount(moment, weights=cost)
    parts = window_parts(rows_T, cost_T, batch)
    found = []
    for rank in range(world_size):
        mine = np.flatnonzero(rank_B[bucket] == rank)
        order, bounds = balanced_steps(cost[mine], parts, -(-len(cost) // batch))
        found.append([mine[order[a:b]] for a, b in pairwise(bounds)])
    return found


def worst(length: np.ndarray, steps: list[list[np.ndarray]]) -> float:
    """Largest total length of a rank over the mean of the ranks, over all steps."""
    sums = np.array([[length[rows].sum() for rows in rank] for rank in steps])
    return float((sums.max(axis=0) / sums.mean(axis=0)).max())


@pytest.mark.parametrize("world_size", [2, 4, 8])
def test_the_heaviest_rank_is_within_five_percent_of_the_mean(world_size: int) -> None:
    user, length = skewed()
    bucket, batch = bucket_of(user, BUCKETS), 512 * world_size
    steps = steps_of(bucket, length + 1, world_size, batch)
    assert worst(length, steps) < 1.05
    rows = np.array([[len(r) for r in rank] for rank in steps])
    assert abs(rows.sum(axis=0) / batch - 1)[:-16].max() < 0.2  # a step keeps its size
    # what the buckets' numbers alone and time order would give
    plain = [np.flatnonzero(bucket % world_size == r) for r in range(world_size)]
    bounds = [even_bounds(len(m), len(length), batch) for m in plain]
    untouched = [[m[a:b] for a, b in pairwise(e)] for m, e in zip(plain, bounds, strict=True)]
    assert worst(length, untouched) > 1.2


def test_rows_move_within_their_window_and_stay_in_order_within_a_sub_batch() -> None:
    user, length = skewed(rows=60_000)
    mine = np.flatnonzero(bucket_of(user, 2) == 0)
    parts = window_parts(np.ones(60_000), length + 1, 1_024)
    order, bounds = balanced_steps(length[mine] + 1, parts, 59)
    moved = np.abs(mine[order] - 1_024 * np.repeat(np.arange(59), np.diff(bounds)))
    assert moved.max() < 18 * 1_024
    assert (np.diff(order) == 1).mean() > 0.98
    rows = np.diff(bounds)
    assert rows[:-11].std() / rows.mean() < 0.15  # cut at equal cost, of about as many rows


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 400), max_size=700),
    num_buckets=st.integers(1, 9),
    world_size=st.integers(1, 9),
    batch=st.integers(1, 300),
)
def test_ranks_hold_every_row_once_in_as_many_steps(
    lengths: list[int], num_buckets: int, world_size: int, batch: int
) -> None:
    world_size = min(world_size, num_buckets)
    cost = 1 + np.array(lengths, dtype=np.int64)
    bucket = bucket_of(np.arange(len(cost)) // 7, num_buckets)
    steps = steps_of(bucket, cost, world_size, batch)
    rows = [r for rank in steps for step in rank for r in step.tolist()]
    assert sorted(rows) == list(range(len(cost)))
    assert {len(rank) for rank in steps} == {-(-len(cost) // batch)}


@given(costs=st.lists(st.integers(0, 10_000), min_size=1, max_size=40), world=st.integers(1, 40))
def test_every_rank_gets_a_bucket_and_none_gets_far_more(costs: list[int], world: int) -> None:
    world = min(world, len(costs))
    rank_B = assign_buckets(np.array(costs), world)
    assert set(rank_B.tolist()) == set(range(world))
    load = np.bincount(rank_B, weights=costs, minlength=world)
    # the greedy bound: no rank exceeds the mean by more than the largest bucket
    assert load.max() <= sum(costs) / world + max(costs)


def test_one_rank_steps_are_whole_batches_and_a_rest() -> None:
    assert even_bounds(10, 10, 4).tolist() == [0, 4, 8, 10]
    assert even_bounds(5, 10, 4).tolist() == [0, 2, 4, 5]
    assert even_bounds(0, 0, 4).tolist() == [0]
