from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pipeline.evaluation.scaling_fit import fit_ladder
from pipeline.evaluation.scaling_score import BLOCKS, parts_of, score_of

ROWS = 20_000
MFLOPS = (0.4, 0.93, 2.2, 5.1, 12.0)
BASE_RATE = 0.1


def entropy(p: float) -> float:
    return float(-(p * np.log(p) + (1 - p) * np.log(1 - p)))


def point(arch: str, rung: int, seed: int, ne: float, noise: float = 0.0) -> dict[str, Any]:
    """A result whose NE is `ne`, up to a noise of its own in every block of users."""
    rows = np.full(BLOCKS, ROWS / BLOCKS)
    random = np.random.default_rng([len(arch), rung, seed])
    loss = rows * entropy(BASE_RATE) * (ne + noise * random.standard_normal(BLOCKS))
    sums = [rows.tolist(), (BASE_RATE * rows).tolist(), loss.tolist()]
    return {
        "point": {"arch": arch, "rung": rung, "seed": seed, "labels": "soft", "trial": None},
        "mflop": MFLOPS[rung],
        "rows": ROWS,
        "rates": [1e-3, 1e-2],
        "parameters": {"dense": 1, "tables": 1},
        "forecast_ne": ne,
        "ne": {"truth": ne, "labels": ne, "bayes": 0.72},
        "parts": {},
        "blocks": {"truth": sums, "labels": sums},
    }


def ladder(
    arch: str, eta: float, *, ne0: float = 0.8, seeds: int = 3, scatter: float = 0.0
) -> list[dict[str, Any]]:
    """Points on a known law: NE0 where C is one MFLOP of rows, `scatter` between seeds."""
    random = np.random.default_rng(len(arch))
    return [
        point(
            arch,
            rung,
            seed,
            ne0 - eta * np.log(mflop) + scatter * random.standard_normal(),
            noise=0.01,
        )
        for rung, mflop in enumerate(MFLOPS)
        for seed in range(seeds)
    ]


def test_a_known_eta_is_found_within_its_interval() -> None:
    found = fit_ladder(ladder("kunlun", 0.01, scatter=0.001))["families"]["kunlun"]["eta"]
    assert found["value"] == pytest.approx(0.01, abs=0.001)
    assert found["low"] < 0.01 < found["high"]
    assert found["high"] - found["low"] < 0.005


def test_intervals_of_eta_cover_it() -> None:
    inside = []
    for trial in range(20):
        name = "kunlun" + "x" * trial  # another name, other noise
        found = fit_ladder(ladder(name, 0.01, scatter=0.002), draws=200)["families"][name]["eta"]
        inside.append(found["low"] <= 0.01 <= found["high"])
    # seeds are few, so that drawing among three understates what they scatter
    assert np.mean(inside) >= 0.75


def test_the_largest_rung_is_predicted_by_the_others() -> None:
    found = fit_ladder(ladder("kunlun", 0.01, scatter=0.001))["families"]["kunlun"]["holdout"]
    assert found["inside"]
    assert found["value"] == pytest.approx(0.8 - 0.01 * np.log(12.0), abs=0.004)
    assert found["low"] < found["value"] < found["high"]


def test_a_largest_rung_off_the_line_is_said_to_be() -> None:
    results = ladder("kunlun", 0.01)
    for result in results:
        if result["point"]["rung"] == 4:
            result["blocks"] = point("kunlun", 4, 0, 0.70, 0.01)["blocks"]
    assert not fit_ladder(results)["families"]["kunlun"]["holdout"]["inside"]


def test_families_are_compared_on_the_same_users() -> None:
    results = ladder("kunlun", 0.02) + ladder("interformer", 0.01)
    against = fit_ladder(results)["against"]["interformer"]
    assert against["slope_ratio"]["low"] < 2.0 < against["slope_ratio"]["high"]
    assert against["slope_ratio"]["value"] == pytest.approx(2.0, rel=0.1)
    gain = 100 * 0.01 * np.log(12.0) / (0.8 - 0.01 * np.log(12.0))
    assert against["gain_pct"]["value"] == pytest.approx(gain, rel=0.1)
    assert against["gain_pct"]["low"] > 0


def test_a_ratio_to_a_slope_that_may_be_none_has_no_interval() -> None:
    results = ladder("kunlun", 0.02) + ladder("interformer", 0.0, scatter=0.002)
    assert fit_ladder(results)["against"]["interformer"]["slope_ratio"]["low"] is None


def test_two_rungs_have_a_law_and_no_prediction_one_has_neither() -> None:
    two = [r for r in ladder("kunlun", 0.01) if r["point"]["rung"] < 2]
    family = fit_ladder(two)["families"]["kunlun"]
    assert "eta" in family
    assert "holdout" not in family
    one = [r for r in two if r["point"]["rung"] == 0]
    assert "eta" not in fit_ladder(one)["families"]["kunlun"]


def test_the_fit_is_the_same_every_time() -> None:
    results = ladder("kunlun", 0.02) + ladder("interformer", 0.01)
    assert fit_ladder(results) == fit_ladder(results)


def world(rows: int = 40_000) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    terms = {name: random.standard_normal(rows) for name in ("same", "pairs", "context")}
    logit = np.sum(list(terms.values()), axis=0) - 2.0
    return terms, logit, random.integers(0, 500, rows)


def test_part_scores_say_what_a_logit_knows() -> None:
    terms, _, _ = world()
    knows = terms["same"] + 0.5 * terms["pairs"]
    found = parts_of(knows, terms)
    assert [found[n]["explained"] for n in terms] == pytest.approx([1.0, 0.5, 0.0], abs=0.02)
    assert found["same"]["r2"] > 0.99
    noisy = parts_of(knows + np.random.default_rng(1).standard_normal(len(knows)), terms)
    assert noisy["same"]["explained"] == pytest.approx(1.0, abs=0.02)
    assert noisy["same"]["r2"] == pytest.approx(0.5, abs=0.02)


def test_the_truth_scores_bayes_and_its_blocks_give_the_same_ne() -> None:
    terms, logit, users = world()
    true = 1 / (1 + np.exp(-logit))
    y = np.random.default_rng(2).random(len(true)) < true
    found = score_of(y=y, true=true, logit=logit, users=users, terms=terms)
    assert found["ne"]["truth"] == found["ne"]["bayes"]
    rows, labels, losses = np.array(found["blocks"]["truth"]).sum(axis=1)
    assert losses / rows / entropy(labels / rows) == pytest.approx(found["ne"]["truth"], rel=1e-5)
    rows, labels, losses = np.array(found["blocks"]["labels"]).sum(axis=1)
    assert losses / rows / entropy(labels / rows) == pytest.approx(found["ne"]["labels"], rel=1e-5)
    assert all(p["explained"] == pytest.approx(1.0) for p in found["parts"].values())
