import math

import numpy as np
import pytest

from pipeline.evaluation import metrics
from pipeline.run.errors import DataError

RNG = np.random.default_rng(7)
P = RNG.uniform(0.01, 0.6, 500).round(2)  # rounded: ties
Y = (RNG.uniform(size=500) < P).astype(np.int8)
W = RNG.uniform(0.5, 3.0, 500)
USERS = RNG.integers(0, 40, 500)


def test_log_loss_by_hand() -> None:
    expected = -(math.log(0.8) + math.log(0.7)) / 2
    assert metrics.log_loss([1, 0], [0.8, 0.3]) == pytest.approx(expected)


def test_log_loss_weighs_rows_by_hand() -> None:
    expected = -(3 * math.log(0.8) + math.log(0.7)) / 4
    assert metrics.log_loss([1, 0], [0.8, 0.3], [3, 1]) == pytest.approx(expected)


def test_log_loss_equals_scikit_learn() -> None:
    sklearn = pytest.importorskip("sklearn.metrics")
    assert metrics.log_loss(Y, P, W) == pytest.approx(sklearn.log_loss(Y, P, sample_weight=W))


@pytest.mark.parametrize(("y", "p"), [(1, 0.0), (0, 1.0)])
def test_certain_and_wrong_costs_sixteen_nats(y: int, p: float) -> None:
    assert metrics.log_loss([y], [p]) == pytest.approx(-math.log(1e-7), rel=1e-6)


def test_ne_of_the_base_rate_is_one() -> None:
    assert metrics.normalized_entropy([1, 0, 0, 0], [0.25] * 4) == pytest.approx(1.0)


def test_ne_by_hand() -> None:
    loss = -(math.log(0.8) + math.log(0.7)) / 2
    assert metrics.normalized_entropy([1, 0], [0.8, 0.3]) == pytest.approx(loss / math.log(2))


def test_soft_labels_are_best_predicted_by_themselves() -> None:
    q = np.array([0.1, 0.4, 0.7])
    best = metrics.normalized_entropy(q, q)
    entropy = -(q * np.log(q) + (1 - q) * np.log(1 - q)).mean() / math.log(2) * math.log(2)
    assert best == pytest.approx(entropy / float(metrics.entropy(0.4)))
    assert best < metrics.normalized_entropy(q, q * 0.9)


def test_ne_gain_and_rce_and_closed_by_hand() -> None:
    assert metrics.ne_gain_pct(0.8, 0.6) == pytest.approx(25.0)
    assert metrics.closed_fraction(0.9, 0.8) == pytest.approx(0.5)
    ne = metrics.normalized_entropy(Y, P)
    assert metrics.relative_cross_entropy(Y, P) == pytest.approx(100 * (1 - ne))


def test_auc_by_hand_counts_ties_as_half() -> None:
    # pairs (positive, negative): .8 beats both, .3 ties with .3 and loses to .5
    assert metrics.auc([1, 1, 0, 0], [0.8, 0.3, 0.3, 0.5]) == pytest.approx((1 + 1 + 0.5 + 0) / 4)


def test_auc_equals_scikit_learn() -> None:
    sklearn = pytest.importorskip("sklearn.metrics")
    assert metrics.auc(Y, P, W) == pytest.approx(sklearn.roc_auc_score(Y, P, sample_weight=W))


def test_gauc_by_hand_drops_users_of_one_class() -> None:
    y, p = [1, 0, 1, 0, 0, 1], [0.9, 0.1, 0.2, 0.7, 0.3, 0.5]
    users = [1, 1, 2, 2, 2, 3]  # AUC 1 on two rows, AUC 0 on three rows, one class
    assert metrics.gauc(y, p, users) == pytest.approx((2 * 1 + 3 * 0) / 5)


def test_gauc_equals_a_loop_over_users() -> None:
    sklearn = pytest.importorskip("sklearn.metrics")
    top = bottom = 0.0
    for user in np.unique(USERS):
        rows = user == USERS
        if Y[rows].min() == Y[rows].max():
            continue
        score = sklearn.roc_auc_score(Y[rows], P[rows], sample_weight=W[rows])
        top, bottom = top + W[rows].sum() * score, bottom + W[rows].sum()
    assert metrics.gauc(Y, P, USERS, W) == pytest.approx(top / bottom)


def test_calibration_by_hand() -> None:
    assert metrics.calibration([1, 0, 0], [0.5, 0.5, 0.5]) == pytest.approx(1.5)
    assert metrics.calibration([1, 0, 0], [0.5, 0.5, 0.5], [2, 1, 1]) == pytest.approx(1.0)


def test_ece_by_hand() -> None:
    y, p = [0, 1, 1, 1], [0.2, 0.2, 0.9, 0.9]  # bins: |.2 - .5| and |.9 - 1|
    assert metrics.expected_calibration_error(y, p, bins=2) == pytest.approx((0.3 + 0.1) / 2)


def test_calibration_curve_keeps_the_weight_and_the_ties_together() -> None:
    predicted, seen, weight = metrics.calibration_curve(Y, P, W, bins=10)
    assert weight.sum() == pytest.approx(W.sum())
    assert (seen * weight).sum() == pytest.approx((W * Y).sum())
    assert (np.diff(predicted) > 0).all()


def test_undefined_metrics_are_nan() -> None:
    for empty in (metrics.log_loss([], []), metrics.auc([], []), metrics.gauc([], [], [])):
        assert math.isnan(empty)
    assert math.isnan(metrics.normalized_entropy([0, 0], [0.1, 0.2]))
    assert math.isnan(metrics.auc([1, 1], [0.1, 0.2]))
    assert math.isnan(metrics.gauc([1, 1], [0.1, 0.2], [5, 5]))
    assert math.isnan(metrics.calibration([0, 0], [0.1, 0.2]))
    assert math.isnan(metrics.closed_fraction(0.9, 1.0))
    assert math.isnan(metrics.expected_calibration_error([], []))


@pytest.mark.parametrize("p", [float("nan"), -0.1, 1.1])
def test_a_prediction_outside_0_1_is_refused_by_row(p: float) -> None:
    with pytest.raises(DataError, match=r"prediction must be in .* at row 1"):
        metrics.log_loss([0, 1], [0.5, p])


def test_bad_labels_weights_and_lengths_are_refused() -> None:
    with pytest.raises(DataError, match="label must be"):
        metrics.auc([2, 0], [0.5, 0.5])
    with pytest.raises(DataError, match="weight must be"):
        metrics.auc([1, 0], [0.5, 0.5], [1, -1])
    with pytest.raises(DataError, match="one length"):
        metrics.auc([1, 0], [0.5])
