"""The heads' prior."""

from __future__ import annotations

import numpy as np
import pytest

from model.config import Objective
from pipeline.pretraining.setup import NO_PRIOR, PRIOR_POSITIVES, PRIOR_ROWS, prior_of


def test_prior_of_a_delayed_label_comes_from_its_first_mature_rows():
    rows = 2 * PRIOR_ROWS
    late = np.arange(rows) >= PRIOR_ROWS
    columns = {
        "y_click": np.arange(rows) % 4 == 0,
        "m_click": np.ones(rows, bool),
        "w_click": np.ones(rows, np.float32),
        "y_conversion": late & (np.arange(rows) % 10 == 0),
        "m_conversion": late,
        "w_conversion": np.where(np.arange(rows) % 10 == 0, 1.0, 3.0),
        "y_install": np.zeros(rows),
        "m_install": np.zeros(rows),
        "w_install": np.ones(rows),
        "shift": np.zeros(rows, np.float32),
        "surface": np.zeros(rows, np.int64),
    }
    names = ("click", "conversion", "install")
    (rates,) = prior_of(columns, tuple(Objective(name=n) for n in names), 1).tolist()
    assert rates == pytest.approx([0.25, 1 / 28, NO_PRIOR])


def test_prior_undoes_the_sampling_of_a_shift():
    y = np.arange(1_000) % 10 == 0
    columns = {
        "y_click": y,
        "m_click": np.ones(1_000, bool),
        "w_click": np.ones(1_000, np.float32),
        "shift": np.full(1_000, np.log(4.0), np.float32),
        "surface": np.zeros(1_000, np.int64),
    }
    rate = prior_of(columns, (Objective(name="click"),), 1).item()
    assert rate == pytest.approx(100 / (100 + 4 * 900))


def test_a_surface_starts_at_its_own_rate_as_far_as_its_positives_tell_it():
    surface = np.repeat([0, 1, 2], [10_000, 1_000, 10])
    y = np.concatenate([np.arange(10_000) % 50 == 0, np.arange(1_000) % 10 == 0, np.ones(10, bool)])
    columns = {
        "y_click": y,
        "m_click": np.ones(len(y), bool),
        "w_click": np.ones(len(y), np.float32),
        "shift": np.zeros(len(y), np.float32),
        "surface": surface,
    }
    rates = prior_of(columns, (Objective(name="click"),), 4)[:, 0].tolist()
    overall = 310 / 11_010
    more = PRIOR_POSITIVES, PRIOR_POSITIVES / overall
    expected = [
        (a + more[0]) / (n + more[1]) for a, n in ((200, 10_000), (100, 1_000), (10, 10), (0, 0))
    ]
    assert rates == pytest.approx(expected)
    assert rates[3] == pytest.approx(overall)
