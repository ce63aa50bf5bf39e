from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.run.errors import ContractError
from pipeline.run.window import DAY_US, HOUR_US
from pipeline.solaris.coverage import shares
from pipeline.solaris.history import VectorHistory
from pipeline.solaris.lookup import lookup
from pipeline.solaris.replay import require_coverage
from pipeline.solaris.serving import EXACT, NEIGHBOURS, NONE, USER, Served
from pipeline.solaris.store import Generation, Vectors
from pipeline.solaris.stores import open_store

WIDTH, TTL, DELAY = 3, 20, 2


def generation(as_of: int = 100) -> Generation:
    return Generation(
        fingerprint="f",
        epoch="e",
        day="2026-11-29",
        fm_cut_us=0,
        as_of_us=as_of,
        ttl_us=TTL,
        delay_us=DELAY,
        width=WIDTH,
        dtype="int8",
    )


def vectors(rows: list[tuple[int, int, int]]) -> Vectors:
    """Distinct (user, ad, written_at) rows; codes tell the row."""
    table = np.array(rows, dtype=np.int64).reshape(-1, 3)
    code = np.arange(1, len(table) + 1, dtype=np.int8)
    return Vectors(
        user_N=table[:, 0],
        ad_N=table[:, 1],
        written_at_N=table[:, 2],
        score_N=code.astype(np.float32),
        z_Nd=np.stack([code, -code, np.ones_like(code)], axis=1),
    )


def served(
    rows: list[tuple[int, int, int]], user: int, ad: int, now: int
) -> tuple[int, int, float]:
    got = VectorHistory(vectors(rows), generation()).serve(
        np.array([user]), np.array([ad]), np.array([now])
    )
    if got.source_B[0] == USER:
        z_d, age_s = got.user_z_Bd[0], got.user_age_s_B[0]
    else:
        z_d, age_s = got.z_Bd[0], got.age_s_B[0]
    return int(got.source_B[0]), round(float(z_d[0]) * 127), float(age_s) * 1e6


def test_life_of_a_vector() -> None:
    rows = [(1, 5, 50)]
    assert served(rows, 1, 5, 50 + DELAY - 1)[0] == NONE
    assert served(rows, 1, 5, 50 + DELAY) == (EXACT, 1, pytest.approx(DELAY, abs=0.1))
    assert served(rows, 1, 5, 50 + TTL - 1)[0] == EXACT
    assert served(rows, 1, 5, 50 + TTL)[0] == NONE


def test_the_newest_serves_only_once_it_is_available() -> None:
    rows = [(1, 5, 50), (1, 5, 60)]
    assert served(rows, 1, 5, 61)[1] == 1
    assert served(rows, 1, 5, 62)[1] == 2


def test_another_ad_of_a_known_user_gets_the_users_mean() -> None:
    assert served([(1, 5, 50)], 1, 6, 55)[:2] == (USER, 1)
    assert served([(1, 5, 50)], 2, 5, 55)[0] == NONE


def test_neighbours_are_of_the_day_and_their_vectors_of_the_moment() -> None:
    hour = HOUR_US
    day_long = replace(generation(), ttl_us=DAY_US, delay_us=0)
    begin = 10 * DAY_US
    rows = [
        (1, 5, begin - 2 * hour),  # alike: 1 and 2
        (2, 5, begin - 2 * hour),
        (3, 6, begin - 2 * hour),
        (2, 9, begin + 2 * hour),  # the ad that is asked for, after the day began
        (3, 9, begin + 2 * hour),
    ]
    codes = np.array([[90, 1, 0], [90, 0, 1], [-90, 1, 0], [7, 7, 7], [-7, 0, 0]], dtype=np.int8)
    written = replace(vectors(rows), z_Nd=codes)
    history = VectorHistory(written, day_long, neighbours=2)

    def ask(user: int, now: int) -> tuple[int, float]:
        got = history.serve(np.array([user]), np.array([9]), np.array([now]))
        return int(got.pair_B[0]), round(float(got.z_Bd[0, 0]) * 127)

    assert ask(1, begin + hour) == (NONE, 0)  # nobody has one yet
    assert ask(1, begin + 3 * hour) == (NEIGHBOURS, 7)  # 3 is unlike and does not count
    assert ask(2, begin + 3 * hour) == (EXACT, 7)
    assert ask(8, begin + 3 * hour)[0] == NEIGHBOURS  # a stranger gets the busiest users' mean


def test_nothing_was_written() -> None:
    assert served([], 1, 5, 55) == (NONE, 0, 0.0)


@pytest.mark.parametrize("rows", [[], [(1, 5, 50)]])
def test_nothing_is_asked(rows: list[tuple[int, int, int]]) -> None:
    nobody = np.zeros(0, dtype=np.int64)
    got = VectorHistory(vectors(rows), generation()).serve(nobody, nobody, nobody)
    assert got.z_Bd.shape == (0, WIDTH)
    assert shares(got.source_B, got.age_s_B)["covered"] == 0


row = st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(1, 60))


@settings(max_examples=25, deadline=None)
@given(
    st.lists(row, max_size=80, unique=True),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 31)), min_size=1, max_size=12),
    st.integers(1, 80),
)
def test_the_store_serves_the_same(
    rows: list[tuple[int, int, int]], asks: list[tuple[int, int]], now: int
) -> None:
    import tempfile

    written = vectors(rows)
    user, ad = (np.array(column) for column in zip(*asks, strict=True))
    replayed = VectorHistory(written, generation()).serve(user, ad, np.full(len(user), now))
    # the store holds what had become available; the replay knows the future and must not use it
    available = written.take(written.written_at_N + DELAY <= now)
    with tempfile.TemporaryDirectory() as folder, open_store(Path(folder), write=True) as store:
        store.publish(generation(as_of=now), [available])
        stored = lookup(store, user, ad, now)
    for part in fields(Served):
        found, wanted = getattr(stored, part.name), getattr(replayed, part.name)
        assert np.allclose(found, wanted, atol=1e-6), part.name


def test_coverage_under_the_floor_is_a_broken_contract() -> None:
    asked = shares(np.array([EXACT, USER, NONE, NONE]), np.array([3600.0, 7200.0, 0, 0]))
    assert (asked["exact"], asked["covered"]) == (0.25, 0.5)
    assert asked["age_h_user"]["p50"] == 2.0
    require_coverage(asked, 0.5)
    with pytest.raises(ContractError, match=r"0\.5000 of 4 asked.*coverage_floor is 0\.6"):
        require_coverage(asked, 0.6)
