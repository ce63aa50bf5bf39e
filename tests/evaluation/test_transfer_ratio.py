import numpy as np
import polars as pl
import pytest

from pipeline.evaluation import metrics
from pipeline.evaluation.transfer_ratio import arm_rows, arms_of, transfer_ratio


def frame(rows: int = 3_000) -> pl.DataFrame:
    rng = np.random.default_rng(3)
    logit_N = rng.normal(-1, 1.5, rows)
    true_N = 1 / (1 + np.exp(-logit_N))

    def seen(share: float, seed: int) -> np.ndarray:
        noise = np.random.default_rng(seed).normal(0, 0.2, rows)
        return 1 / (1 + np.exp(-(-1 + share * (logit_N + 1) + noise)))

    return pl.DataFrame(
        {
            "user_id": rng.integers(0, 300, rows),
            "y_click": (rng.uniform(size=rows) < true_N).astype(np.int8),
            "m_click": rng.uniform(size=rows) < 0.8,
            "true_click": true_N,
            "p_fm_click": seen(0.9, 1),
            "p_none_s0_click": seen(0.1, 2),
            "p_none_s1_click": seen(0.1, 3),
            "p_kd_loopfm_s0_click": seen(0.5, 4),
            "p_kd_loopfm_s1_click": seen(0.4, 5),
        }
    )


FRAME = frame()


def test_arms_and_seeds_come_from_column_names() -> None:
    assert arms_of([*FRAME.columns, "p_kd_s0_conversion"], "click") == {
        "none": ["p_none_s0_click", "p_none_s1_click"],
        "kd_loopfm": ["p_kd_loopfm_s0_click", "p_kd_loopfm_s1_click"],
    }


def test_ne_is_the_mean_over_seeds_and_tr_the_ratio_of_gains() -> None:
    rows = {row["arm"]: row for row in arm_rows(FRAME, "click", draws=50)}
    known = FRAME.filter("m_click")
    y = known["y_click"].to_numpy()

    def ne(*columns: str) -> float:
        found = [metrics.normalized_entropy(y, known[c].to_numpy()) for c in columns]
        return float(np.mean(found))

    none = ne("p_none_s0_click", "p_none_s1_click")
    both = ne("p_kd_loopfm_s0_click", "p_kd_loopfm_s1_click")
    fm = ne("p_fm_click")
    assert rows["none"]["ne"][0] == pytest.approx(none)
    assert rows["kd_loopfm"]["ne"][0] == pytest.approx(both)
    assert rows["kd_loopfm"]["gain"][0] == pytest.approx(none - both)
    assert rows["kd_loopfm"]["tr"][0] == pytest.approx((none - both) / (none - fm))
    assert rows["none"]["tr"] is None
    assert rows["fm"]["tr"] is None
    assert rows["kd_loopfm"]["seeds"] == 2
    for row in rows.values():
        assert row["ne"][1] < row["ne"][0] < row["ne"][2]


def test_against_the_truth_intervals_are_narrower() -> None:
    on_labels, on_truth = (
        {r["arm"]: r for r in arm_rows(FRAME, "click", draws=100, label=label)}
        for label in (None, "true_click")
    )

    def width(rows: dict, name: str) -> float:
        return rows["kd_loopfm"][name][2] - rows["kd_loopfm"][name][1]

    assert width(on_truth, "tr") < width(on_labels, "tr")
    assert "auc" not in on_truth["kd_loopfm"]


@pytest.mark.parametrize(
    ("fm", "known"),
    [((0.75, 0.73, 0.77), True), ((0.785, 0.78, 0.79), False), ((0.7, 0.6, 0.82), False)],
)
def test_tr_needs_a_gain_that_is_large_and_sure(fm: tuple[float, ...], known: bool) -> None:
    base_D = np.array([0.8, 0.8, 0.8])
    found = transfer_ratio(base_D, np.array([0.79, 0.79, 0.79]), np.array(fm))
    assert (found is not None) is known
    if found:
        assert found.value == pytest.approx(0.2)
