"""Writers killed anywhere, servers stopped in the middle, and what is left to readers."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from redis_server import Server
from store_world import AS_OF, exact, generation, vectors

from pipeline.run.errors import RetryError
from pipeline.solaris import redis_store
from pipeline.solaris.lookup import lookup
from pipeline.solaris.serving import EXACT
from pipeline.solaris.store import VECTORS, Vectors
from pipeline.solaris.stores import Place, open_store
from pipeline.solaris.upkeep import faults, verify
from pipeline.solaris.vector_store import VectorStore

USERS = 240
WRITER = """
import sys
sys.path[:0] = sys.argv[4:]
from pathlib import Path
from store_world import generation
from test_crashes import batches
from pipeline.solaris import redis_store, vector_store
from pipeline.solaris.stores import Place, open_store

redis_store.LOCK_S = 1.0
vector_store.USERS_AT_ONCE = 20
place = Place(folder=Path(sys.argv[1]), lineage="one", url=sys.argv[2])
with open_store(place, write=True, wait_s=30) as store:
    for name in range(int(sys.argv[3]), 100):
        store.publish(generation(str(name), neighbours=4), batches(name))
        print(name, flush=True)  # what was said to be committed must never be lost
"""


def batches(name: int) -> Iterator[Vectors]:
    """Six batches; every code of generation `name` is `name`."""
    for begin in range(0, USERS, 40):
        user = [u for u in range(begin, begin + 40) for _ in (5, 6)]
        yield vectors(user, [5, 6] * 40, [1.0] * 80, [name] * 80)


def killed_writer(place: Place, first: int, after_s: float) -> int:
    """The last generation that a writer said was committed before it was killed, -1 if none."""
    command = [sys.executable, "-c", WRITER, str(place.folder), place.url, str(first)]
    command += [str(folder) for folder in Path(__file__).parents[:2]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=dict(os.environ)) as child:
        assert child.stdout is not None
        child.stdout.readline()  # it is at work
        time.sleep(after_s)
        child.send_signal(signal.SIGKILL)
        said = child.stdout.read().split()
    return int(said[-1]) if said else first


def codes(store: VectorStore) -> set[int]:
    """The codes of all answers, which must be complete."""
    user, ad = np.repeat(np.arange(USERS), 2), np.tile([5, 6], USERS)
    got = lookup(store, user, ad, AS_OF)
    assert (got.pair_B == EXACT).all()
    return set(np.rint(got.z_Bd * 127).astype(int).ravel().tolist())


def kill_and_look(place: Place, times: int) -> None:
    chance = random.Random(7)
    for _ in range(times):
        said = killed_writer(place, 1, chance.uniform(0, 0.25))
        with open_store(place, timeout_s=5.0) as store:
            (served,) = codes(store)
            assert served >= said  # committed, and said so or about to
            assert faults(verify(store)) == 0
        with open_store(place, write=True, wait_s=30) as store:
            # the next writer removes what was left, and writes again
            store.publish(generation("last", "2026-11-30", neighbours=4), batches(100))
            assert codes(store) == {100}
            number = store.current().number  # type: ignore[union-attr]
            assert not any(list(store.shelf.scan(n, VECTORS)) for n in range(1, number))
            store.publish(generation("0", "2026-12-01", neighbours=4), batches(0))
        wipe(place)


def wipe(place: Place) -> None:
    if place.url == "lmdb":
        for path in (place.folder / "lmdb").iterdir():
            path.unlink()
    else:
        redis_store.redis.Redis.from_url(place.url).flushall()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path, "--appendonly", "yes")
    yield server
    server.stop()


def test_kill_9_at_random_points_embedded(tmp_path: Path) -> None:
    kill_and_look(Place(folder=tmp_path / "one"), 4)


def test_kill_9_at_random_points_on_a_server(server: Server) -> None:
    kill_and_look(Place(url=server.url, lineage="one"), 2)


@pytest.mark.long
@pytest.mark.parametrize("backend", ["lmdb", "redis"])
def test_kill_9_at_50_random_points(tmp_path: Path, backend: str, server: Server) -> None:
    place = Place(folder=tmp_path / "one")
    if backend == "redis":
        place = Place(url=server.url, lineage="one")
    kill_and_look(place, 50)


def test_a_server_that_stops_in_mid_publish(server: Server) -> None:
    place = Place(url=server.url, lineage="one")

    def stopping() -> Iterator[Vectors]:
        yield from list(batches(2))[:3]
        server.stop()
        yield from list(batches(2))[3:]

    with open_store(place, write=True, timeout_s=5.0) as store:
        store.publish(generation("1", neighbours=4), batches(1))
    with open_store(place, timeout_s=5.0) as reader:
        assert codes(reader) == {1}
        with (
            open_store(place, write=True, timeout_s=5.0) as store,
            pytest.raises(RetryError, match="cannot be reached"),
        ):
            store.publish(generation("2", neighbours=4), stopping())
        server.start()
        assert codes(reader) == {1}
        server.client().delete("solaris:one:writer")  # as its expiry does in a minute
        with open_store(place, write=True, timeout_s=5.0) as store:
            store.publish(generation("2", neighbours=4), batches(2))
        assert codes(reader) == {2}


def test_a_restart_that_loses_everything_is_healed_by_publishing(server: Server) -> None:
    place = Place(url=server.url, lineage="one")
    with open_store(place, write=True) as store:
        store.publish(generation("1"), batches(1))
    with open_store(place, timeout_s=5.0) as reader:
        assert codes(reader) == {1}
        server.client().flushall()
        assert reader.generation() is None
        with open_store(place, write=True) as store:
            store.publish(generation("1"), batches(3))  # the same number and name as before
        assert codes(reader) == {3}


def test_a_writer_that_lost_its_lock_changes_nothing(server: Server) -> None:
    place = Place(url=server.url, lineage="one")

    def slow() -> Iterator[Vectors]:
        yield from batches(1)
        server.client().delete("solaris:one:writer")
        with open_store(place, write=True) as other:
            other.publish(generation("2"), batches(2))

    with open_store(place, write=True) as store:
        with pytest.raises(RetryError, match="went to another writer"):
            store.publish(generation("1"), slow())
        assert codes(store) == {2}


def test_the_server_forgets_records_when_they_end(server: Server) -> None:
    rows = vectors([1, 1, 2], [5, 6, 5], [1, 5, 20], [1, 2, 3])
    with open_store(Place(url=server.url, lineage="one"), write=True) as store:
        store.publish(generation(), [rows])  # a day of long ago: its lives begin now
        assert exact(store, 1, 5) == 1
        client = server.client()
        left_h = [client.ttl(f"solaris:one:g1:u:{user}") / 3600 for user in (1, 2)]
        assert np.allclose(left_h, [23, 4], atol=0.01)
        with store.shelf.writing() as writing:
            writing.put(1, VECTORS, np.array([1]), [b"changed"], None)
        assert client.ttl("solaris:one:g1:u:1") / 3600 == pytest.approx(23, abs=0.01)


def test_the_lock_outlives_long_work(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_store, "LOCK_S", 0.6)

    def slow() -> Iterator[Vectors]:
        yield from batches(1)
        time.sleep(1.5)

    with open_store(Place(url=server.url, lineage="one"), write=True) as store:
        store.publish(generation("1"), slow())
        assert codes(store) == {1}
