import numpy as np
import pytest

from pipeline.evaluation import intervals, metrics
from pipeline.evaluation.intervals import interval, resample


def _sample(seed: int, users: int = 300) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    rows = rng.geometric(0.1, users)
    user_N = np.repeat(np.arange(users) * 7 + 3, rows)
    q_N = 1 / (1 + np.exp(-rng.normal(-2, 1, len(user_N))))
    return (
        user_N,
        (rng.uniform(size=len(q_N)) < q_N).astype(np.int8),
        q_N,
        rng.uniform(1, 3, len(q_N)),
    )


def test_place_0_is_the_metric_itself() -> None:
    user_N, y_N, p_N, w_N = _sample(1)
    draws = resample(user_N, y_N, {"a": p_N}, w_N, draws=3)["a"]
    assert draws.ne_D[0] == pytest.approx(metrics.normalized_entropy(y_N, p_N, w_N))
    assert draws.auc_D[0] == pytest.approx(metrics.auc(y_N, p_N, w_N))
    assert draws.calibration_D[0] == pytest.approx(metrics.calibration(y_N, p_N, w_N))
    assert len(draws.ne_D) == 4


def test_each_draw_is_the_metric_with_the_draws_weights() -> None:
    user_N, y_N, p_N, w_N = _sample(2, users=40)
    draws = resample(user_N, y_N, {"a": p_N.round(1)}, w_N, draws=5, seed=4)["a"]
    _, code_N = np.unique(user_N, return_inverse=True)
    blocks = list(intervals._weight_blocks(40, 2, 5, 4))
    for place, weights_U in enumerate(np.concatenate(blocks, axis=1).T):
        total_N = w_N * weights_U[code_N]
        assert draws.ne_D[place] == pytest.approx(
            metrics.normalized_entropy(y_N, p_N.round(1), total_N)
        )
        assert draws.auc_D[place] == pytest.approx(metrics.auc(y_N, p_N.round(1), total_N))


def test_weights_are_poisson_of_mean_and_variance_one() -> None:
    blocks = list(intervals._weight_blocks(1_000, 64, 200, 0))[1:]
    weights = np.concatenate(blocks, axis=1)
    assert weights.shape == (1_000, 200)
    assert weights.mean() == pytest.approx(1.0, abs=0.01)
    assert weights.var() == pytest.approx(1.0, abs=0.02)


def test_block_size_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    user_N, y_N, p_N, _ = _sample(3)
    whole = resample(user_N, y_N, {"a": p_N}, draws=20)["a"]
    monkeypatch.setattr(intervals, "BLOCK_VALUES", 2 * len(user_N))
    parts = resample(user_N, y_N, {"a": p_N}, draws=20)["a"]
    np.testing.assert_allclose(whole.auc_D, parts.auc_D)
    np.testing.assert_allclose(whole.ne_D, parts.ne_D)


def test_same_seed_same_draws_and_another_seed_others() -> None:
    user_N, y_N, p_N, _ = _sample(4)
    one = resample(user_N, y_N, {"a": p_N}, draws=10, seed=1)["a"]
    again = resample(user_N, y_N, {"a": p_N}, draws=10, seed=1)["a"]
    other = resample(user_N, y_N, {"a": p_N}, draws=10, seed=2)["a"]
    assert (one.ne_D == again.ne_D).all()
    assert not (one.ne_D[1:] == other.ne_D[1:]).any()


def test_pairs_are_much_narrower_than_their_parts() -> None:
    user_N, y_N, p_N, _ = _sample(5)
    both = resample(user_N, y_N, {"a": p_N, "b": p_N * 0.98}, draws=200)
    part = interval(both["a"].ne_D)
    pair = interval(both["b"].ne_D - both["a"].ne_D)
    assert pair.high - pair.low < 0.2 * (part.high - part.low)


def test_intervals_hold_the_expected_ne_about_95_times_of_100() -> None:
    big = _sample(99, users=20_000)
    expected = metrics.normalized_entropy(big[1], big[2])
    inside = 0
    for seed in range(100):
        user_N, y_N, p_N, _ = _sample(1_000 + seed)
        draws = resample(user_N, y_N, {"a": p_N}, draws=200, with_auc=False)["a"]
        found = interval(draws.ne_D)
        inside += found.low <= expected <= found.high
    assert 86 <= inside <= 99


def test_no_rows_and_one_class_give_nulls() -> None:
    empty = resample([], [], {"a": []}, draws=5)["a"]
    assert interval(empty.ne_D).to_json() == {"value": None, "low": None, "high": None}
    one_class = resample([1, 2], [0, 0], {"a": [0.1, 0.2]}, draws=5)["a"]
    assert interval(one_class.auc_D).to_json()["value"] is None


def test_soft_labels_without_auc() -> None:
    user_N, _, p_N, _ = _sample(6)
    draws = resample(user_N, p_N, {"bayes": p_N}, draws=5, with_auc=False)["bayes"]
    assert draws.ne_D[0] == pytest.approx(metrics.normalized_entropy(p_N, p_N))
    assert np.isnan(draws.auc_D).all()
