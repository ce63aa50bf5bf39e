"""Intercepts: what they fit, how far few positives are believed, when parts are scored."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from pipeline.pretraining.calibration import (
    OBJECTIVE_SD,
    SURFACE_SD,
    Calibrator,
    Scored,
    calibration_begin,
    fit_intercepts,
    named,
    positives,
)
from pipeline.run.window import HOUR_US


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def world(
    rows: int, shift_Z: tuple[float, ...], *, rate: float = 0.05, keep: float = 1.0
) -> Scored:
    """One objective whose labels' log odds lie `shift` above the logits; negatives kept at `keep`.

    Labels are expected values, so that the fit has no noise: each row is there twice.
    """
    rng = np.random.default_rng(0)
    surface = rng.integers(0, len(shift_Z), rows)
    logit = np.log(rate / (1 - rate)) + rng.normal(0, 1, rows)
    p = sigmoid(logit + np.array(shift_Z)[surface])
    kept = rng.random(rows) < keep
    weight = np.concatenate([p, np.where(kept, (1 - p) / keep, 0)])
    return Scored(
        logits_NK=np.tile(logit, 2)[:, None].astype(np.float32),
        labels_NK=np.repeat([1.0, 0.0], rows)[:, None].astype(np.float32),
        weights_NK=weight[:, None].astype(np.float32),
        surface_N=np.tile(surface, 2),
    )


def calibration(scored: Scored, shift_ZK: np.ndarray) -> np.ndarray:
    p = sigmoid(scored.logits_NK.astype(float) + shift_ZK[scored.surface_N]) * scored.weights_NK
    sums = [
        np.bincount(scored.surface_N, v[:, 0]) for v in (p, scored.labels_NK * scored.weights_NK)
    ]
    return sums[0] / sums[1]


@pytest.mark.parametrize("keep", [1.0, 0.3])
def test_many_positives_calibrate_every_surface(keep):
    scored = world(600_000, (0.4, -0.3, 0.1), keep=keep)
    before, after = (calibration(scored, s) for s in (np.zeros((3, 1)), fit_intercepts(scored, 3)))
    assert np.abs(before - 1).max() > 0.2
    assert np.abs(after - 1).max() < 0.03


def test_few_positives_move_the_objective_and_hardly_the_surface():
    scored = world(1_200, (1.0, 1.0), rate=0.05)
    (total,) = positives(scored, 2).sum(axis=0)
    shift = fit_intercepts(scored, 2)[:, 0]
    trust = total / (total + OBJECTIVE_SD**-2)
    assert 0.8 * trust < shift.mean() < 1.0
    apart = world(1_200, (1.0, -1.0), rate=0.05)
    few = fit_intercepts(apart, 2)[:, 0]
    assert 0 < few[0] - few[1] < 2 * total / (total + SURFACE_SD**-2)


@pytest.mark.parametrize("label", [0.0, 1.0])
def test_rows_of_one_kind_give_a_bounded_shift(label):
    scored = world(200, (0.0,))
    same = Scored(
        logits_NK=scored.logits_NK,
        labels_NK=np.full_like(scored.labels_NK, label),
        weights_NK=np.ones_like(scored.weights_NK),
        surface_N=scored.surface_N,
    )
    shift = fit_intercepts(same, 1)[0, 0]
    assert (shift > 0) == (label > 0)
    assert abs(shift) < 6  # without the priors it would be infinite


def test_masked_rows_say_nothing():
    scored = world(1_000, (1.0, 1.0))
    masked = Scored(
        logits_NK=scored.logits_NK,
        labels_NK=scored.labels_NK,
        weights_NK=np.zeros_like(scored.weights_NK),
        surface_N=scored.surface_N,
    )
    assert fit_intercepts(masked, 2).tolist() == [[0.0], [0.0]]


def test_the_last_hours_stay_within_their_segment():
    assert calibration_begin(0, 48 * HOUR_US, 24) == 24 * HOUR_US
    assert calibration_begin(40 * HOUR_US, 48 * HOUR_US, 24) == 40 * HOUR_US


@pytest.mark.parametrize(
    ("rows", "begin_us", "starts"),
    [(100, 60, [6, 7, 8, 9]), (100, 0, [0, 2, 5, 8]), (20, 15, []), (20, 8, [1])],
)
def test_parts_begin_at_batches_of_the_last_hours(tmp_path, rows, begin_us, starts):
    loader = SimpleNamespace(
        columns={"label_us": np.arange(rows)}, batch_size=10, num_batches=rows // 10
    )
    parts = Calibrator(loader, begin_us, tmp_path).parts  # type: ignore[arg-type]
    assert [p.start for p in parts] == starts
    assert not parts or parts[-1].stop == loader.num_batches


def test_named_values_are_json():
    assert named(np.array([[0.1, 0.2]]), ("feed",), ("click", "conversion")) == {
        "feed": {"click": 0.1, "conversion": 0.2}
    }
