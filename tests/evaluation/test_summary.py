import numpy as np
import polars as pl
import pytest

from pipeline.evaluation import metrics
from pipeline.evaluation.summary import summarise
from pipeline.run.window import HOUR_US


def predictions(rows: int = 600, seed: int = 0) -> pl.DataFrame:
    rng = np.random.default_rng(seed)
    true_N = 1 / (1 + np.exp(-rng.normal(-1.5, 1.2, rows)))
    y_N = (rng.uniform(size=rows) < true_N).astype(np.int8)
    return pl.DataFrame(
        {
            "impression_id": np.arange(rows),
            "user_id": rng.integers(0, 60, rows),
            "surface": pl.Series(["feed", "reels"] * (rows // 2)),
            "ts_us": rng.integers(12, 24, rows) * HOUR_US,
            "history": rng.integers(0, 30, rows),
            "y_click": y_N,
            "m_click": rng.uniform(size=rows) < 0.9,
            "p_click": np.clip(true_N * 1.1, 0, 0.99),
            "c_click": np.clip(true_N * 1.3, 0, 0.99),
            "true_click": true_N,
            "y_conversion": np.zeros(rows, np.int8),
            "m_conversion": rng.uniform(size=rows) < 0.5,
            "p_conversion": np.full(rows, 0.01),
            "c_conversion": np.full(rows, 0.01),
        }
    )


FRAME = predictions()
FOUND = summarise(FRAME, ("feed", "reels", "stories"), ("click", "conversion"), 100)


def test_immature_rows_take_no_part() -> None:
    rows = FRAME.filter("m_click")
    y, p = rows["y_click"].to_numpy(), rows["p_click"].to_numpy()
    cell = FOUND["overall"]["click"]
    assert cell["rows"] == len(rows) < len(FRAME)
    assert cell["challenger"]["ne"]["value"] == pytest.approx(metrics.normalized_entropy(y, p))
    assert cell["challenger"]["auc"]["value"] == pytest.approx(metrics.auc(y, p))
    users = rows["user_id"].to_numpy()
    assert cell["challenger"]["gauc"] == pytest.approx(metrics.gauc(y, p, users))


def test_surfaces_and_slices_hold_every_row_once() -> None:
    clicks = FOUND["overall"]["click"]["rows"]
    assert sum(c["click"]["rows"] for c in FOUND["surfaces"].values() if c) == clicks
    for name, parts in FOUND["slices"].items():
        assert sum(c["click"]["rows"] for c in parts.values()) == clicks, name
    assert FOUND["surfaces"]["stories"] == {}
    assert set(FOUND["slices"]["hour"]) == {"12-18", "18-24"}
    assert set(FOUND["slices"]["history"]) == {"0", "1-4", "5-16", "17+"}


def test_one_class_gives_nulls_and_no_error() -> None:
    cell = FOUND["overall"]["conversion"]
    assert cell["positives"] == 0
    assert cell["challenger"]["ne"]["value"] is None
    assert cell["challenger"]["calibration"]["value"] is None


def test_difference_is_paired_and_signed() -> None:
    cell = FOUND["overall"]["click"]
    change = cell["difference"]
    expected = cell["challenger"]["ne"]["value"] - cell["champion"]["ne"]["value"]
    assert change["ne"]["value"] == pytest.approx(expected)
    gain = -100 * expected / cell["champion"]["ne"]["value"]
    assert change["ne_gain_pct"]["value"] == pytest.approx(gain)
    width = cell["challenger"]["ne"]["high"] - cell["challenger"]["ne"]["low"]
    assert change["ne"]["high"] - change["ne"]["low"] < width


def test_truth_gives_bayes_and_closed_on_labels_and_on_probabilities() -> None:
    rows = FRAME.filter("m_click")
    true, p = rows["true_click"].to_numpy(), rows["p_click"].to_numpy()
    found = FOUND["overall"]["click"]["truth"]
    bayes = metrics.normalized_entropy(true, true)
    closed = metrics.closed_fraction(metrics.normalized_entropy(true, p), bayes)
    assert found["probability"]["bayes_ne"]["value"] == pytest.approx(bayes)
    assert found["probability"]["challenger"]["closed"]["value"] == pytest.approx(closed)
    assert closed < 1
    on_labels = metrics.normalized_entropy(rows["y_click"].to_numpy(), true)
    assert found["labels"]["bayes_ne"]["value"] == pytest.approx(on_labels)
    spread = found["probability"]["challenger"]["closed"]
    assert spread["low"] < spread["value"] < spread["high"]


def test_flat_rows_name_every_cell() -> None:
    names = [(row["surface"], row["objective"]) for row in FOUND["rows"]]
    assert names == [
        ("overall", "click"), ("overall", "conversion"), ("feed", "click"), ("feed", "conversion"),
        ("reels", "click"), ("reels", "conversion"),
    ]  # fmt: skip
