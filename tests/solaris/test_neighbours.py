from __future__ import annotations

import numpy as np
import pytest

from pipeline.solaris import neighbours
from pipeline.solaris.neighbours import NOBODY, near_means, nearest_users


def embeddings(count: int, *, seed: int = 0) -> np.ndarray:
    """Users in loose groups, as tastes are."""
    rng = np.random.default_rng(seed)
    centre_d = rng.standard_normal((20, 16))
    own_Ud = centre_d[rng.integers(0, 20, count)] + rng.standard_normal((count, 16))
    return own_Ud.astype(np.float32)


def exact(embedding_Ud: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    unit_Ud = embedding_Ud / np.linalg.norm(embedding_Ud, axis=1, keepdims=True)
    cosine_UU = unit_Ud @ unit_Ud.T
    np.fill_diagonal(cosine_UU, -2.0)
    place_UK = np.argsort(-cosine_UU, axis=1)[:, :k]
    return place_UK, np.take_along_axis(cosine_UU, place_UK, axis=1)


def test_recall_against_exact_cosine() -> None:
    embedding_Ud = embeddings(2_000)
    place_UK, cosine_UK = nearest_users(embedding_Ud, 32)
    true_UK, true_cosine_UK = exact(embedding_Ud, 32)
    hits = [len(set(a) & set(b)) for a, b in zip(place_UK, true_UK, strict=True)]
    assert np.mean(hits) / 32 >= 0.95
    assert (np.diff(cosine_UK, axis=1) <= 0).all()
    assert np.allclose(cosine_UK[:, 0], true_cosine_UK[:, 0], atol=0.05)
    assert not (place_UK == np.arange(2_000)[:, None]).any()


def test_two_runs_and_any_chunk_give_the_same_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    embedding_Ud = embeddings(301)
    place_UK, cosine_UK = nearest_users(embedding_Ud, 8)
    for chunk in (10_000, 100):
        monkeypatch.setattr(neighbours, "CHUNK", chunk)
        again_UK, cosine_again_UK = nearest_users(embedding_Ud, 8)
        assert np.array_equal(again_UK, place_UK)
        assert np.array_equal(cosine_again_UK, cosine_UK)


def test_short_lists_end_with_nobody() -> None:
    embedding_Ud = np.array([[1, 0], [0, 0], [1, 1], [-1, 0]], dtype=np.float32)
    place_UK, cosine_UK = nearest_users(embedding_Ud, 3)
    assert place_UK.tolist() == [
        [2, 3, NOBODY],
        [NOBODY, NOBODY, NOBODY],
        [0, 3, NOBODY],
        [2, 0, NOBODY],
    ]
    assert np.allclose(cosine_UK[0], [np.sqrt(0.5), -1, 0])


@pytest.mark.parametrize(("count", "k"), [(0, 4), (1, 4), (5, 0)])
def test_nobody_to_find(count: int, k: int) -> None:
    place_UK, cosine_UK = nearest_users(np.ones((count, 3), dtype=np.float32), k)
    assert place_UK.shape == cosine_UK.shape == (count, k)
    assert (place_UK == NOBODY).all()


def test_users_alike_find_each_other() -> None:
    place_UK, _ = nearest_users(np.ones((5, 3), dtype=np.float32), 4)
    assert [sorted(row) for row in place_UK] == [[b for b in range(5) if b != a] for a in range(5)]


def test_means_weigh_cosine_and_age_and_leave_out_the_unlike() -> None:
    means = near_means(
        count=4,
        row_H=np.array([0, 3, 1, 0, 0]),
        cosine_H=np.array([0.8, 0.3, -0.5, 0.4, -0.5], dtype=np.float32),
        age_us_H=np.array([12, 12, 0, 0, 0]),
        z_Hd=np.array([[1.0], [5.0], [9.0], [3.0], [9.0]]),
        ttl_us=24,
    )
    first, second = 0.8 * np.exp(-1), 0.4
    mean = (first + 3 * second) / (first + second)
    assert list(means.found_B) == [True, False, False, True]
    assert np.allclose(means.z_Bd[:, 0], [mean, 0, 0, 5])
    assert np.allclose(means.age_s_B * 1e6, [12 * first / (first + second), 0, 0, 12])


def test_without_hits_there_are_no_means() -> None:
    nothing = np.zeros(0, dtype=np.int64)
    means = near_means(
        count=2,
        row_H=nothing,
        cosine_H=nothing.astype(np.float32),
        age_us_H=nothing,
        z_Hd=np.zeros((0, 3), dtype=np.int8),
        ttl_us=24,
    )
    assert not means.found_B.any()
    assert means.z_Bd.shape == (2, 3)
