from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks._store_world import CANDIDATES, batches, latencies, race_lmdb, write


def test_both_contestants_find_every_vector(tmp_path: Path) -> None:
    wrote = write(str(tmp_path / "ours"), 20 * CANDIDATES, 0, equal=True)
    assert wrote["vectors"] == 20 * CANDIDATES
    (tmp_path / "raw").mkdir()
    # a contestant that missed one would raise
    assert min(race_lmdb(str(tmp_path), requests=5, rounds=2).values()) > 0


def test_requests_meet_exact_vectors_and_neighbours(tmp_path: Path) -> None:
    write(str(tmp_path), 5_000, 8)
    found = latencies(str(tmp_path), requests=20)
    assert 0.05 < found["exact"] <= 0.4
    assert found["neighbours"] > 0.05
    assert found["p99_ms"] >= found["p50_ms"] > 0


def test_users_lie_in_one_batch_each() -> None:
    seen: set[int] = set()
    for batch in batches(400_000, equal=False):
        users = set(np.unique(batch.user_N).tolist())
        assert not users & seen
        seen |= users
    assert len(seen) > 5_000
