"""What every shelf must do: the tests run on LMDB and on a real Redis server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from redis_server import Server
from store_world import AS_OF, HOUR, WIDTH, exact, generation, pair, vectors

from pipeline.run.errors import DataError, RetryError
from pipeline.solaris.lookup import lookup
from pipeline.solaris.serving import EXACT, NEIGHBOURS, NONE
from pipeline.solaris.store import NEAREST, RECENT, STRANGER, VECTORS, Vectors
from pipeline.solaris.stores import Place, open_store
from pipeline.solaris.vector_store import VectorStore


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("redis"))
    yield server
    server.stop()


@pytest.fixture(params=["lmdb", "redis"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "lmdb":
        return Place(folder=tmp_path / "one")
    server = request.getfixturevalue("server")
    server.client().flushall()
    return Place(url=server.url, lineage="one")


@pytest.fixture
def store(place: Place) -> Iterator[VectorStore]:
    with open_store(place, write=True) as store:
        yield store


def test_pairs_come_back(store: VectorStore) -> None:
    batch = vectors([1, 1, -2], [5, 6, 5], [1, 2, 3], [7, 8, 9])
    assert store.publish(generation(), [batch]) == 3
    got = lookup(store, np.array([1, -2, 1, 3]), np.array([6, 5, 7, 5]), AS_OF)
    assert list(got.pair_B) == [EXACT, EXACT, NONE, NONE]
    assert np.allclose(got.z_Bd[:, 0] * 127, [8, 9, 0, 0])
    assert list(got.age_s_B) == [2 * 3600, 3 * 3600, 0, 0]
    assert list(got.user_B) == [True, True, True, False]


def test_newest_of_a_pair_wins_whatever_the_order(store: VectorStore) -> None:
    store.publish(generation(), [vectors([1, 1, 1], [5, 5, 5], [3, 1, 2], [3, 1, 2])])
    assert exact(store, 1, 5) == 1
    assert store.size() == 1


def test_life_begins_after_the_delay_and_ends_at_ttl(store: VectorStore) -> None:
    store.publish(generation(), [vectors([1], [5], [0], [9])])
    delay = generation().delay_us
    assert exact(store, 1, 5, AS_OF + delay - 1) is None
    assert exact(store, 1, 5, AS_OF + delay) == 9
    assert exact(store, 1, 5, AS_OF + 24 * HOUR - 1) == 9
    late = lookup(store, np.array([1]), np.array([5]), AS_OF + 24 * HOUR)
    assert list(late.source_B) == [NONE]


def test_the_expired_are_not_stored_and_compaction_removes_the_rest(store: VectorStore) -> None:
    batch = vectors([1, 1, 2, 2, 3], [5, 6, 5, 7, 4], [24, 23, 1, 23, 1], [1, 2, 3, 4, 5])
    assert store.publish(generation(neighbours=2), [batch]) == 4
    assert store.compact(AS_OF) == 0
    assert store.compact(AS_OF + HOUR) == 2
    assert exact(store, 1, 6, AS_OF + HOUR) is None
    assert exact(store, 2, 5, AS_OF + HOUR) == 3
    assert store.size() == 2
    assert [(kind, user) for kind, user, _ in store.content()] == [
        (VECTORS, 2),
        (VECTORS, 3),
        (NEAREST, STRANGER),
        (NEAREST, 2),
        (NEAREST, 3),
    ]


def test_a_users_mean_is_of_its_newest_few(store: VectorStore) -> None:
    many = RECENT + 4
    ages = [1.0 + i for i in range(many)]
    batch = vectors([1] * many, list(range(many)), ages, list(range(many)))
    store.publish(generation(), [batch, vectors([2], [9], [1], [77])])
    got = lookup(store, np.array([1, 2, 3]), np.array([99, 99, 99]), AS_OF)
    weight = np.exp(-np.arange(1.0, RECENT + 1) / 12)
    mean = (weight * np.arange(RECENT)).sum() / weight.sum()
    assert np.allclose(got.user_z_Bd[:, 0] * 127, [mean, 77, 0], atol=1e-4)


def test_neighbours_stand_in_for_a_missing_pair(store: VectorStore) -> None:
    def row(user: int, ad: int, age_h: float, code: list[int]) -> Vectors:
        return Vectors(
            user_N=np.array([user]),
            ad_N=np.array([ad]),
            written_at_N=np.array([AS_OF - int(age_h * HOUR)]),
            score_N=np.zeros(1, dtype=np.float32),
            z_Nd=np.array([code], dtype=np.int8),
        )

    near, far, unlike = [100, 10, 0, 0], [100, 50, 0, 0], [-100, 0, 0, 0]
    batches = [
        row(1, 5, 1, [100, 0, 0, 0]),
        row(2, 6, 1, near),
        row(3, 6, 7, far),
        row(4, 6, 1, unlike),  # its cosine is negative
        row(5, 7, 1, unlike),
    ]
    assert store.publish(generation(neighbours=4), batches) == 5
    got = lookup(store, np.array([1, 1, 1, 9]), np.array([6, 5, 7, 6]), AS_OF)
    assert list(got.pair_B) == [NEIGHBOURS, EXACT, NONE, NEIGHBOURS]
    cosine = [100 / np.hypot(100, 10), 100 / np.hypot(100, 50)]
    weight = np.array(cosine) * np.exp(-np.array([1, 7]) / 12)
    share = weight / weight.sum()
    assert np.allclose(got.z_Bd[0] * 127, share @ np.array([near, far]), atol=1e-3)
    assert np.allclose(got.age_s_B[0], share @ [3600, 7 * 3600])
    # nothing is known of user 9: the users with the most vectors stand in, all alike
    weight = np.exp(-np.array([1, 7, 1]) / 12)
    assert np.allclose(
        got.z_Bd[3] * 127, weight / weight.sum() @ np.array([near, far, unlike]), atol=1e-3
    )
    assert list(got.user_B) == [True, True, True, False]
    assert np.allclose(got.user_z_Bd[0] * 127, [100, 0, 0, 0])


def test_one_request_and_its_pairs_alone_are_served_alike(store: VectorStore) -> None:
    rng = np.random.default_rng(0)
    count = 3_000
    rows = Vectors(
        user_N=rng.integers(0, 60, count),
        ad_N=rng.integers(0, 80, count),
        written_at_N=AS_OF - rng.integers(0, 26 * HOUR, count),
        score_N=np.zeros(count, dtype=np.float32),
        z_Nd=rng.integers(-127, 128, (count, WIDTH)).astype(np.int8),
    )
    order = np.argsort(rows.user_N)
    store.publish(generation(neighbours=8), [rows.take(order[:1000]), rows.take(order[1000:])])
    user, ad = rng.integers(-2, 62, 300), rng.integers(-2, 90, 300)
    whole = lookup(store, user, ad, AS_OF)
    assert {EXACT, NEIGHBOURS, NONE} == set(whole.pair_B.tolist())
    for i in range(0, 300, 7):
        one = lookup(store, user[i : i + 1], ad[i : i + 1], AS_OF)
        assert one.pair_B[0] == whole.pair_B[i]
        assert np.allclose(one.z_Bd[0], whole.z_Bd[i], atol=1e-6)
        assert np.allclose(one.age_s_B[0], whole.age_s_B[i])
        assert np.allclose(one.user_z_Bd[0], whole.user_z_Bd[i], atol=1e-6)


def test_nothing_is_asked(store: VectorStore) -> None:
    store.publish(generation(neighbours=2), [vectors([1], [5], [1], [1])])
    nobody = np.zeros(0, dtype=np.int64)
    assert lookup(store, nobody, nobody, AS_OF).z_Bd.shape == (0, WIDTH)


def test_batches_do_not_decide_the_content(place: Place) -> None:
    rows = vectors([1, 2, 3, 4], [5, 5, 5, 6], [1, 2, 3, 4], [4, -3, 2, 100])
    found = []
    for name, cut in (("a", [0, 1, 2, 3]), ("b", [3, 2, 1, 0])):
        with open_store(place, write=True) as store:
            parts = [rows.take(np.array([i])) for i in cut]
            store.publish(generation(name, neighbours=3), parts)
            found.append(list(store.content()))
    assert found[0] == found[1]


def test_a_new_generation_replaces_the_old_one(store: VectorStore) -> None:
    store.publish(generation("a"), [vectors([1], [5], [1], [1])])
    store.publish(generation("b", "2026-11-30"), [vectors([1], [6], [1], [2])])
    assert exact(store, 1, 5) is None
    assert exact(store, 1, 6) == 2
    assert store.size() == 1


def test_an_older_day_and_a_repeat_write_nothing(store: VectorStore) -> None:
    store.publish(generation("a"), [vectors([1], [5], [1], [1])])
    assert store.publish(generation("z", "2026-11-28"), [vectors([1], [5], [1], [2])]) == 0
    assert store.publish(generation("a"), [vectors([1], [5], [1], [3])]) == 1
    assert exact(store, 1, 5) == 1


def test_an_interrupted_batch_is_never_visible(store: VectorStore) -> None:
    def broken() -> Iterator[Vectors]:
        yield vectors([1, 8], [5, 5], [1, 1], [2, 2])
        raise RuntimeError("power cut")

    store.publish(generation("a"), [vectors([1], [5], [1], [1])])
    with pytest.raises(RuntimeError, match="power cut"):
        store.publish(generation("b"), broken())
    assert exact(store, 1, 5) == 1
    store.publish(generation("b"), [vectors([1], [5], [1], [2])])
    assert exact(store, 1, 5) == 2
    assert [user for _, user, _ in store.content()] == [1]
    assert list(store.shelf.scan(2, VECTORS)) == []  # what the broken one left is gone


def test_two_writers_are_refused(place: Place) -> None:
    with open_store(place, write=True, wait_s=0.3) as store, store.shelf.writing():
        with pytest.raises(RetryError, match="wait for it"), store.shelf.writing():
            pass
        with pytest.raises(RetryError, match="wait for it"):
            store.publish(generation(), [])
    with open_store(place, write=True, wait_s=0.3) as store:
        assert store.publish(generation(), [vectors([1], [5], [1], [1])]) == 1


def test_readers_see_one_generation_per_request(place: Place) -> None:
    """Every vector of generation g is g: a request that mixes two would answer two numbers."""
    users, stop, wrong = list(range(40)), threading.Event(), []
    asked = np.repeat(users, 3), np.tile([5, 6, 7], 40)

    def read(store: VectorStore) -> None:
        while not stop.is_set():
            got = lookup(store, *asked, AS_OF)
            codes = set(np.rint(got.z_Bd[got.pair_B == EXACT] * 127).ravel().tolist())
            codes |= set(np.rint(got.user_z_Bd * 127).ravel().tolist())
            complete = (got.pair_B[asked[1] != 7] == EXACT).all() and got.user_B.all()
            if len(codes) != 1 or not complete:
                wrong.append(codes)

    with open_store(place, write=True) as store:
        batch = [[u for u in users for _ in (5, 6)], [5, 6] * 40, [1] * 80]
        store.publish(generation("0", neighbours=3), [vectors(*batch, [1] * 80)])
        thread = threading.Thread(target=read, args=(store,))
        thread.start()
        for g in range(2, 25):
            store.publish(generation(str(g), neighbours=3), [vectors(*batch, [g] * 80)])
        stop.set()
        thread.join()
    assert not wrong


def test_a_store_of_another_layout_is_replaced(store: VectorStore, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    with monkeypatch.context() as older:
        older.setattr("pipeline.solaris.store.LAYOUT", 1)
        store.publish(generation("a"), [vectors([1], [5], [1], [1])])
    assert store.generation() is None
    store.publish(generation("a"), [vectors([2], [5], [1], [2])])
    assert exact(store, 2, 5) == 2
    assert store.size() == 1


def test_an_empty_store_says_what_to_do(store: VectorStore) -> None:
    assert store.generation() is None
    assert store.size() == store.compact(AS_OF) == 0
    with pytest.raises(DataError, match="publish"):
        pair(store, 1, 1)
