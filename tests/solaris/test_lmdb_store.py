from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from pipeline.run.errors import DataError
from pipeline.solaris.lmdb_store import LmdbStore, open_store
from pipeline.solaris.store import RECENT, Generation, Vectors

HOUR = 3_600_000_000
AS_OF = 1_000 * HOUR
WIDTH = 4


def generation(name: str = "a", day: str = "2026-11-29") -> Generation:
    return Generation(
        fingerprint=name,
        epoch="e1",
        day=day,
        fm_cut_us=0,
        as_of_us=AS_OF,
        ttl_us=24 * HOUR,
        delay_us=HOUR // 30,
        width=WIDTH,
        dtype="int8",
    )


def vectors(user: list[int], ad: list[int], age_h: list[float], z: list[int]) -> Vectors:
    return Vectors(
        user_N=np.array(user),
        ad_N=np.array(ad),
        written_at_N=AS_OF - np.array([int(a * HOUR) for a in age_h]),
        score_N=np.array(z, dtype=np.float32) / 2,
        z_Nd=np.repeat(np.array(z, dtype=np.int8)[:, None], WIDTH, axis=1),
    )


def exact(store: LmdbStore, user: int, ad: int, now: int = AS_OF) -> int | None:
    got = store.pairs(np.array([user]), np.array([ad]), now)
    return int(got.z_Bd[0, 0]) if got.found_B[0] else None


def test_pairs_come_back(tmp_path: Path) -> None:
    with open_store(tmp_path, write=True) as store:
        assert (
            store.publish(generation(), [vectors([1, 1, -2], [5, 6, 5], [1, 2, 3], [7, 8, 9])]) == 3
        )
        got = store.pairs(np.array([1, -2, 1, 3]), np.array([6, 5, 7, 5]), AS_OF)
        assert list(got.found_B) == [True, True, False, False]
        assert list(got.z_Bd[:, 0]) == [8, 9, 0, 0]
        assert list(got.score_B) == [4.0, 4.5, 0.0, 0.0]
        assert list(AS_OF - got.written_at_B[:2]) == [2 * HOUR, 3 * HOUR]


def test_newest_of_a_pair_wins_whatever_the_order(tmp_path: Path) -> None:
    with open_store(tmp_path, write=True) as store:
        store.publish(generation(), [vectors([1, 1, 1], [5, 5, 5], [3, 1, 2], [3, 1, 2])])
        assert exact(store, 1, 5) == 1
        assert store.size() == 1


def test_life_begins_after_the_delay_and_ends_at_ttl(tmp_path: Path) -> None:
    with open_store(tmp_path, write=True) as store:
        store.publish(generation(), [vectors([1], [5], [0], [9])])
        delay = generation().delay_us
        assert exact(store, 1, 5, AS_OF + delay - 1) is None
        assert exact(store, 1, 5, AS_OF + delay) == 9
        assert exact(store, 1, 5, AS_OF + 24 * HOUR - 1) == 9
        assert exact(store, 1, 5, AS_OF + 24 * HOUR) is None
        assert not store.recent(np.array([1]), AS_OF + 24 * HOUR).found_BS.any()


def test_the_expired_are_not_stored_and_compaction_removes_the_rest(tmp_path: Path) -> None:
    with open_store(tmp_path, write=True) as store:
        batch = vectors([1, 1, 2], [5, 6, 5], [24, 23, 1], [1, 2, 3])
        assert store.publish(generation(), [batch]) == 2
        assert store.compact(AS_OF) == 0
        assert store.compact(AS_OF + HOUR) == 1
        assert exact(store, 1, 6, AS_OF + HOUR) is None
        assert exact(store, 2, 5, AS_OF + HOUR) == 3
        assert [k[:1] for k, _ in store.content()] == [b"p", b"u"]


def test_recent_list_is_newest_first_and_short(tmp_path: Path) -> None:
    many = RECENT + 4
    with open_store(tmp_path, write=True) as store:
        ages = [1.0 + i for i in range(many)]
        batch = vectors([1] * many, list(range(many)), ages, list(range(many)))
        store.publish(generation(), [batch, vectors([2], [9], [1], [77])])
        got = store.recent(np.array([1, 2, 3]), AS_OF)
        assert list(got.z_BSd[0, :, 0]) == list(range(RECENT))
        assert list(got.found_BS.sum(axis=1)) == [RECENT, 1, 0]


def test_a_new_generation_replaces_the_old_one(tmp_path: Path) -> None:
    with open_store(tmp_path, write=True) as store:
        store.publish(generation("a"), [vectors([1], [5], [1], [1])])
        store.publish(generation("b", "2026-11-30"), [vectors([1], [6], [1], [2])])
        assert exact(store, 1, 5) is None
        assert exact(store, 1, 6) == 2
        assert store.size() == 1


def test_an_older_day_and_a_repeat_write_nothing(tmp_path: Path) -> None:
    with open_store(tmp_path, write=True) as store:
        store.publish(generation("a"), [vectors([1], [5], [1], [1])])
        assert store.publish(generation("z", "2026-11-28"), [vectors([1], [5], [1], [2])]) == 0
        assert store.publish(generation("a"), [vectors([1], [5], [1], [3])]) == 1
        assert exact(store, 1, 5) == 1


def test_an_interrupted_batch_is_never_visible(tmp_path: Path) -> None:
    def broken() -> Iterator[Vectors]:
        yield vectors([1], [5], [1], [2])
        raise RuntimeError("power cut")

    with open_store(tmp_path, write=True) as store:
        store.publish(generation("a"), [vectors([1], [5], [1], [1])])
        with pytest.raises(RuntimeError, match="power cut"):
            store.publish(generation("b"), broken())
        assert exact(store, 1, 5) == 1
        store.publish(generation("b"), [vectors([1], [5], [1], [2])])
        assert exact(store, 1, 5) == 2


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_lmdb_store import generation, vectors
from pipeline.solaris.lmdb_store import open_store

def dying():
    yield vectors([1, 2], [5, 5], [1, 1], [2, 3])
    os.kill(os.getpid(), signal.SIGKILL)
    yield vectors([3], [5], [1], [4])

with open_store(Path(sys.argv[1]), write=True) as store:
    store.publish(generation("b"), dying())
"""


def test_kill_9_in_the_middle_then_again_equals_an_unkilled_store(tmp_path: Path) -> None:
    whole = [vectors([1, 2], [5, 5], [1, 1], [2, 3]), vectors([3], [5], [1], [4])]
    killed, plain = tmp_path / "killed", tmp_path / "plain"
    with open_store(killed, write=True) as store:
        store.publish(generation("a"), [vectors([1], [5], [1], [1])])
    command = [sys.executable, "-c", KILLED, str(killed), str(Path(__file__).parent)]
    child = subprocess.run(command, check=False, env=dict(os.environ), capture_output=True)
    assert child.returncode == -signal.SIGKILL, child.stderr
    with open_store(killed) as store:
        assert exact(store, 1, 5) == 1
        assert exact(store, 2, 5) is None
    with open_store(killed, write=True) as store:
        store.publish(generation("b"), whole)
        content = list(store.content())
    with open_store(plain, write=True) as store:
        store.publish(generation("b"), whole)
        assert list(store.content()) == content


def test_the_map_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.solaris.lmdb_store.FIRST_MAP_BYTES", 1 << 16)
    count = 3_000
    with open_store(tmp_path, write=True) as store:
        batch = vectors(list(range(count)), [5] * count, [1.0] * count, [3] * count)
        assert store.publish(generation(), [batch]) == count
        assert exact(store, count - 1, 5) == 3
    with open_store(tmp_path) as store:
        assert exact(store, 0, 5) == 3


def test_a_missing_or_empty_store_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="publish"), open_store(tmp_path):
        pass
    with open_store(tmp_path, write=True) as store:
        assert store.generation() is None
        assert store.size() == 0
        with pytest.raises(DataError, match="publish"):
            store.pairs(np.array([1]), np.array([1]), AS_OF)
