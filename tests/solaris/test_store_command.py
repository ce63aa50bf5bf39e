from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from redis_server import Server
from store_world import AS_OF, HOUR, generation, vectors

from pipeline.run.errors import EXIT_FAILED, EXIT_OK, ConfigError
from pipeline.solaris.records import pack_nearest, pack_users
from pipeline.solaris.store import NEAREST, VECTORS, newest_of_pairs
from pipeline.solaris.store_command import main
from pipeline.solaris.stores import open_store


@pytest.fixture
def home(tmp_path: Path) -> Path:
    rows = vectors([1, 1, 2, 3], [5, 6, 5, 7], [1, 13, 2, 23], [127, -127, 64, 3])
    with open_store(tmp_path / "store" / "one", write=True) as store:
        store.publish(generation(neighbours=2), [rows])
    return tmp_path


def answer(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, dict]:
    code = main(list(argv))
    return code, json.loads(capsys.readouterr().out)


def test_stats(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = answer(capsys, "stats", "--home", str(home))
    assert code == EXIT_OK
    assert (found["vectors"], found["users"], found["users_with_neighbours"]) == (4, 3, 3)
    assert found["generation"]["fingerprint"] == "a"
    assert (found["age_h"]["p0"], found["age_h"]["p100"]) == (1.0, 23.0)
    assert found["bytes"] > found["record_bytes"] > 4 * 24


def test_verify_finds_nothing_in_a_sound_store(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert answer(capsys, "verify", "--home", str(home)) == (
        EXIT_OK,
        {"records": 7, "vectors": 4, "faults": 0},
    )


@pytest.mark.parametrize(
    ("fault", "change"),
    [
        ("damaged", {}),
        ("finite", {"z_Nd": np.full((1, 4), -128, dtype=np.int8)}),
        ("finite", {"score_N": np.array([np.nan], dtype=np.float32)}),
        ("times", {"written_at_N": np.array([AS_OF - 24 * HOUR])}),
        ("times", {"written_at_N": np.array([AS_OF + 1])}),
    ],
)
def test_verify_counts_bad_vectors(
    home: Path, capsys: pytest.CaptureFixture[str], fault: str, change: dict
) -> None:
    good = newest_of_pairs(vectors([2], [5], [2], [64]))
    user_U, records, _ = pack_users(type(good)(**{**vars(good), **change}), generation())
    if not change:
        records = [records[0][:-1]]
    with open_store(home / "store" / "one", write=True) as store, store.shelf.writing() as writing:
        writing.put(1, VECTORS, user_U, records, None)
    code, found = answer(capsys, "verify", "--home", str(home))
    assert (code, found[fault], found["faults"]) == (EXIT_FAILED, 1, 1)


def test_verify_counts_bad_order_and_bad_neighbours(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    twice = vectors([2, 2], [5, 5], [2, 1], [64, 64])
    itself = pack_nearest(
        np.ones((2, 4), dtype=np.float32),
        np.array([2, 99]),
        np.array([[0], [0]]),
        np.ones((2, 1), dtype=np.float32),
    )
    with open_store(home / "store" / "one", write=True) as store, store.shelf.writing() as writing:
        user_U, records, _ = pack_users(twice, generation())
        writing.put(1, VECTORS, user_U, records, None)
        writing.put(1, NEAREST, np.array([2, 99]), itself, None)
    code, found = answer(capsys, "verify", "--home", str(home))
    assert code == EXIT_FAILED
    assert (found["unsorted"], found["neighbours"], found["strangers"]) == (1, 1, 1)


def test_compact_at_a_time(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    late = "1970-02-11T20:00:00"  # four hours after the end of the stored day
    assert AS_OF + 4 * HOUR == 1004 * HOUR
    assert answer(capsys, "compact", "--home", str(home), "--at", late) == (0, {"removed": 1})
    assert answer(capsys, "verify", "--home", str(home))[1] == {
        "records": 5,
        "vectors": 3,
        "faults": 0,
    }
    assert answer(capsys, "compact", "--home", str(home)) == (0, {"removed": 3})  # now
    assert answer(capsys, "stats", "--home", str(home))[1]["vectors"] == 0


def test_a_server_needs_a_lineage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = Server(tmp_path)
    try:
        with pytest.raises(ConfigError, match="needs --lineage"):
            main(["stats", "--url", server.url])
        code, found = answer(capsys, "stats", "--url", server.url, "--lineage", "one")
        assert (code, found["generation"]) == (EXIT_OK, None)
    finally:
        server.stop()
    with pytest.raises(ConfigError, match='must be "lmdb", redis://'):
        main(["stats", "--url", "http://localhost", "--lineage", "one"])
