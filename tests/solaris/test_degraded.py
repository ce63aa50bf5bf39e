"""The student is served whatever the store does."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from redis_server import Server
from store_world import AS_OF, WIDTH, generation, vectors

from pipeline.solaris import degraded, redis_store
from pipeline.solaris.degraded import Lookups
from pipeline.solaris.serving import EXACT, NONE
from pipeline.solaris.store import VECTORS, StoreError
from pipeline.solaris.stores import Place, open_store

HERE = [str(folder) for folder in Path(__file__).parents[:2]]
USER, AD = np.array([1, 1]), np.array([5, 6])


PUBLISHER = """
import sys
sys.path[:0] = sys.argv[2:]
from pathlib import Path
from test_degraded import publish
from pipeline.solaris.stores import Place
publish(Place(folder=Path(sys.argv[1])))
"""


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path, "--appendonly", "yes")
    yield server
    server.stop()


def publish(place: Place, name: str = "a", count: int = 1) -> None:
    rows = vectors([1 + i for i in range(count)], [5] * count, [1.0] * count, [7] * count)
    with open_store(place, write=True) as store:
        store.publish(generation(name), [rows])


def publish_elsewhere(folder: Path) -> None:
    """By another process: one may hold a file of LMDB open once."""
    command = [sys.executable, "-c", PUBLISHER, str(folder), *HERE]
    subprocess.run(command, check=True)


def asked(lookups: Lookups) -> list[int]:
    return lookups.lookup(USER, AD, AS_OF).pair_B.tolist()


def test_a_stopped_server_and_then_a_new_one(
    server: Server, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    place = Place(url=server.url, lineage="one")
    publish(place)
    with Lookups(place, width=WIDTH, timeout_s=2.0, clock=clock) as lookups:
        assert asked(lookups) == [EXACT, NONE]
        server.stop()
        with caplog.at_level(logging.WARNING):
            for _ in range(3):
                assert asked(lookups) == [NONE, NONE]
        assert lookups.faults == {"down": 1, "resting": 2}
        assert "down" in caplog.text
        server.start()  # its file brings the generation back
        clock.now += degraded.FIRST_REST_S
        assert asked(lookups) == [EXACT, NONE]


def test_a_frozen_server_costs_its_timeout_once(server: Server, clock: Clock) -> None:
    place = Place(url=server.url, lineage="one")
    publish(place)
    with Lookups(place, width=WIDTH, clock=clock) as lookups:
        assert asked(lookups)[1] == NONE
        lookups.faults.clear()
        clock.now += 60
        server.freeze()
        began = time.monotonic()
        assert asked(lookups) == [NONE, NONE]
        assert time.monotonic() - began < 1.0  # 20 ms, and what a busy machine adds
        assert asked(lookups) == [NONE, NONE]
        assert lookups.faults == {"slow": 1, "resting": 1}
        server.thaw()
    with Lookups(place, width=WIDTH, timeout_s=5.0, clock=clock) as lookups:
        assert asked(lookups) == [EXACT, NONE]


def test_a_server_with_no_room_for_clients_is_full(server: Server, clock: Clock) -> None:
    place = Place(url=server.url, lineage="one")
    publish(place)
    holder = server.client()
    holder.config_set("maxclients", 1)
    with Lookups(place, width=WIDTH, timeout_s=2.0, clock=clock) as lookups:
        assert asked(lookups) == [NONE, NONE]
        assert lookups.faults == {"full": 1}
        holder.config_set("maxclients", 100)
        clock.now += degraded.FIRST_REST_S
        assert asked(lookups) == [EXACT, NONE]


def test_rests_double_and_logs_come_once_a_minute(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    with Lookups(Place(folder=tmp_path), width=WIDTH, clock=clock) as lookups:
        with caplog.at_level(logging.WARNING):
            for _ in range(120):
                assert asked(lookups) == [NONE, NONE]
                clock.now += 0.5
        assert lookups.faults["down"] == 7  # at 0, 0.5, 1.5, 3.5, 7.5, 15.5 and 31.5 seconds
        assert len(caplog.records) == 1
        clock.now += 30
        assert asked(lookups) == [NONE, NONE]
        assert len(caplog.records) == 2
        publish(Place(folder=tmp_path))
        clock.now += degraded.LONGEST_REST_S
        assert asked(lookups) == [EXACT, NONE]


@pytest.mark.parametrize("left", [0, 100, 8192, 20_000])
def test_a_cut_off_file(tmp_path: Path, clock: Clock, left: int) -> None:
    place = Place(folder=tmp_path)
    publish(place, count=3_000)
    os.truncate(tmp_path / "lmdb" / "data.mdb", left)
    with Lookups(place, width=WIDTH, clock=clock) as lookups:
        assert asked(lookups) == [NONE, NONE]
        assert sum(lookups.faults.values()) == 1
        assert set(lookups.faults) <= {"corrupt", "down"}


def test_a_file_cut_off_or_deleted_while_it_is_open(tmp_path: Path, clock: Clock) -> None:
    place = Place(folder=tmp_path)
    publish(place, count=3_000)
    with Lookups(place, width=WIDTH, clock=clock) as lookups:
        assert asked(lookups) == [EXACT, NONE]
        os.truncate(tmp_path / "lmdb" / "data.mdb", 16_384)
        assert asked(lookups) == [NONE, NONE]
        assert lookups.faults == {"corrupt": 1}
        (tmp_path / "lmdb" / "data.mdb").unlink()
        assert asked(lookups) == [NONE, NONE]
        assert lookups.faults == {"corrupt": 1, "down": 1}
        publish_elsewhere(tmp_path)  # another file in its place
        clock.now += degraded.FIRST_REST_S
        assert asked(lookups) == [EXACT, NONE]


def test_a_store_that_was_replaced_between_two_requests(tmp_path: Path, clock: Clock) -> None:
    place = Place(folder=tmp_path)
    publish(place)
    with Lookups(place, width=WIDTH, clock=clock) as lookups:
        assert asked(lookups) == [EXACT, NONE]
        (tmp_path / "lmdb" / "data.mdb").rename(tmp_path / "old.mdb")
        (tmp_path / "lmdb" / "lock.mdb").unlink()
        with open_store(Place(folder=tmp_path / "other"), write=True) as store:
            store.publish(generation("b"), [vectors([1], [6], [1.0], [7])])
        (tmp_path / "other" / "lmdb" / "data.mdb").rename(tmp_path / "lmdb" / "data.mdb")
        assert asked(lookups) == [NONE, NONE]
        assert lookups.faults == {"down": 1}
        clock.now += degraded.FIRST_REST_S
        assert asked(lookups) == [NONE, EXACT]


def test_many_threads_ask_while_the_store_comes_and_goes(tmp_path: Path) -> None:
    place, wrong = Place(folder=tmp_path), []
    stop = threading.Event()

    def ask(lookups: Lookups) -> None:
        while not stop.is_set():
            if asked(lookups) not in ([NONE, NONE], [EXACT, NONE]):
                wrong.append(1)

    with Lookups(place, width=WIDTH) as lookups:
        threads = [threading.Thread(target=ask, args=(lookups,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(2):
            publish_elsewhere(tmp_path)
            time.sleep(0.3)
            (tmp_path / "lmdb" / "data.mdb").unlink()
            (tmp_path / "lmdb" / "lock.mdb").unlink()
            time.sleep(0.1)
        stop.set()
        for thread in threads:
            thread.join()
    assert not wrong
    assert set(lookups.faults) <= {"down", "resting"}


@pytest.mark.parametrize("garbage", [b"", b"xyz", b"0123456789" * 10])
@pytest.mark.parametrize("backend", ["lmdb", "redis"])
def test_a_damaged_record_spoils_its_request_alone(
    request: pytest.FixtureRequest, tmp_path: Path, clock: Clock, backend: str, garbage: bytes
) -> None:
    place = Place(folder=tmp_path)
    if backend == "redis":
        place = Place(url=request.getfixturevalue("server").url, lineage="one")
    publish(place, count=3)
    with open_store(place, write=True) as store, store.shelf.writing() as writing:
        writing.put(1, VECTORS, np.array([1]), [garbage], None)
    with Lookups(place, width=WIDTH, timeout_s=2.0, clock=clock) as lookups:
        assert asked(lookups) == [NONE, NONE]
        assert lookups.faults == {"corrupt": 1}
        other = lookups.lookup(np.array([2]), np.array([5]), AS_OF)
        assert other.pair_B.tolist() == [EXACT]


def test_an_empty_store_and_one_of_another_width(tmp_path: Path, clock: Clock) -> None:
    place = Place(folder=tmp_path)
    with open_store(place, write=True):
        pass
    with Lookups(place, width=WIDTH, clock=clock) as lookups:
        assert asked(lookups) == [NONE, NONE]
        assert lookups.faults == {"empty": 1}
    publish(place)
    with Lookups(place, width=WIDTH + 1, clock=clock) as lookups:
        served = lookups.lookup(USER, AD, AS_OF)
        assert served.z_Bd.shape == (2, WIDTH + 1)
        assert lookups.faults == {"width": 1}


def test_a_wrong_password_is_never_shown(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server(tmp_path, "--requirepass", "right-one")
    try:
        wrong = server.url.replace("redis://", "redis://:wrong-one@")
        place = Place(url=wrong, lineage="one")
        with (
            caplog.at_level(logging.DEBUG),
            Lookups(place, width=WIDTH, timeout_s=2.0, clock=clock) as lookups,
        ):
            assert asked(lookups) == [NONE, NONE]
            assert lookups.faults == {"down": 1}
        assert "refuses the password" in caplog.text
        assert "wrong-one" not in caplog.text + repr(place)
    finally:
        server.stop()


def test_the_password_of_the_environment(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(tmp_path, "--requirepass", "right-one")
    monkeypatch.setenv("HEADWATER_REDIS_PASSWORD", "right-one")
    try:
        place = Place(url=server.url, lineage="one")
        publish(place)
        with Lookups(place, width=WIDTH, timeout_s=2.0, clock=clock) as lookups:
            assert asked(lookups) == [EXACT, NONE]
    finally:
        server.stop()


def test_tls_options_reach_the_connection() -> None:
    url = "rediss://h:1/0?ssl_cert_reqs=required&ssl_ca_certs=/none.pem&ssl_check_hostname=True"
    with redis_store.open_shelf(url, "one") as shelf:
        pool = shelf._client.connection_pool
        assert pool.connection_class.__name__ == "SSLConnection"
        assert pool.connection_kwargs["ssl_ca_certs"] == "/none.pem"
        with pytest.raises(StoreError, match="cannot be reached"):
            shelf.read(lambda reading: reading.current)
