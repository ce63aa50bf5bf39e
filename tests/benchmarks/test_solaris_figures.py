"""The figures of benchmarks solaris: means of worlds, and how sure they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks._paired import with_scatter
from benchmarks._solaris_value import PLAIN, SHARES, figures_of
from pipeline.loopfm.arms import SOLARIS_ARMS
from pipeline.solaris.serving import SOURCES

TRS = {
    **{"kd": 0.1, "loopfm": 0.4, "kd_loopfm": 0.5, "kd_raw": 0.5, "kd_raw_loopfm": 0.6},
    **{"solaris_exact": 0.3, "solaris_user": 0.45, "solaris": 0.5, "loopfm_solaris": 0.55},
    **{"kd_loopfm_solaris": 0.6, "kd_raw_solaris": 0.65, "kd_raw_loopfm_solaris": 0.64},
    **{"solaris_placebo": 0.49, "backfilled": 0.3},
    **{f"masked_{share}": 0.008 * share for share in SHARES},
}


def answer(shift: float, seed: int) -> dict[str, Any]:
    """A world: NE .9 without help, .8 of the model; every arm's gain shifted, draws noisy."""
    random = np.random.default_rng(seed)
    arms = {"none": 0.0, "fm": 1.0} | {arm: tr + shift for arm, tr in TRS.items()}
    nes = {arm: 0.9 - 0.1 * tr + np.r_[0, random.normal(0, 1e-3, 400)] for arm, tr in arms.items()}
    served = dict.fromkeys(SOURCES, 0.25)
    return {"served": served, "nes": {s: {a: n.tolist() for a, n in nes.items()} for s in "ab"}}


def test_every_figure_has_an_interval_around_it() -> None:
    assert set(TRS) >= {*PLAIN[1:], *(arm.name for arm in SOLARIS_ARMS)}
    found = figures_of([answer(shift, seed) for seed, shift in enumerate((-0.02, 0.0, 0.02))])
    assert found["tr_exact"] == pytest.approx(0.3)
    assert found["user_over_kd"] == pytest.approx(4.5)
    assert found["gain_over_loopfm"] == pytest.approx(0.15)
    assert found["placebo_gap"] == pytest.approx(0.01)
    assert found["sweep_ratio"] == pytest.approx(2.5)
    assert found["skew_cost"] == pytest.approx(0.2)
    assert found["sweep_monotone"] == 1.0
    for name in ("tr_exact", "user_over_kd", "gain_over_loopfm", "skew_cost", "tr_kd"):
        assert found[f"{name}_low"] < found[name] < found[f"{name}_high"]
    # what all worlds agree on is surer than what they differ in
    width = {n: found[f"{n}_high"] - found[f"{n}_low"] for n in ("tr_exact", "gain_over_loopfm")}
    assert width["gain_over_loopfm"] < 0.7 * width["tr_exact"]


def test_scatter_of_worlds_widens_an_interval_as_students_t_does() -> None:
    draws = np.full(20_001, 0.5)
    three, one = with_scatter(draws, [0.4, 0.5, 0.6]), with_scatter(draws, [0.5])
    assert three.high - three.low == pytest.approx(2 * 4.303 * 0.1 / 3**0.5, rel=0.05)
    assert (one.low, one.high) == (0.5, 0.5)
