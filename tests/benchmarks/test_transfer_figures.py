"""The figures of `transfer` from made-up draws of NE."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import transfer
from benchmarks._measure import home_folder
from benchmarks._paired import mean_of_worlds
from benchmarks._transfer_arms import MAIN, in_formats, variants

TRS = {"kd": 0.1, "raw": 0.4, "loopfm": 0.4, "kd_loopfm": 0.5, "kd_raw": 0.6, "placebo": 0.59}
TRS |= {"kd_raw_loopfm": 0.7, "bound": 0.9, "none": 0.0, "fm": 1.0}


def nes(gain: float = 0.1, seed: int = 0) -> dict[str, np.ndarray]:
    """NE of arms with the TRs above, of a model that gains `gain`."""
    noise = np.random.default_rng(seed).normal(0, 1e-4, transfer.DRAWS + 1)
    noise[0] = 0.0
    return {arm: 0.95 - gain * tr + noise for arm, tr in TRS.items()}


def test_figures_of_planted_surfaces_and_of_public_sets() -> None:
    half = nes() | {"kd_loopfm": nes()["none"] - 0.1 * 0.3}
    cells = {
        ("planted", "main", "feed"): nes(),
        ("planted", "main", "reels"): half,
        ("planted", "user_id", "feed"): nes(),
        ("movielens", "main", "drama"): nes(),
        ("movielens", "main", "other"): nes(gain=0.01),
    }
    figures = transfer._transfer_figures(cells)
    assert figures["tr_ratio_min"] == pytest.approx(3.0)
    assert figures["tr_ratio_mean"] == pytest.approx(4.0)
    assert figures["tr_full"] == pytest.approx(0.7)
    assert figures["gain_over_kd_raw"] == pytest.approx(0.1)
    assert figures["gain_over_kd_raw_low"] > 0
    assert figures["placebo_gap"] == pytest.approx(0.01)
    assert figures["bound_tr"] == pytest.approx(0.9)
    assert figures["tr_ratio_min_user_id"] == pytest.approx(5.0)
    assert figures["tr_full_movielens"] == pytest.approx(0.7)  # of drama alone


def test_a_model_that_gains_too_little_gives_no_ratio() -> None:
    assert transfer._transfer_figures({("planted", "main", "feed"): nes(gain=0.015)}) == {}


def test_a_distillation_that_does_nothing_counts_as_the_floor() -> None:
    cell = nes() | {"kd": nes()["none"] + 0.001}
    figures = transfer._transfer_figures({("planted", "main", "feed"): cell})
    assert figures["tr_ratio_min"] == pytest.approx(0.5 / transfer.KD_FLOOR)


def test_costs_of_formats_are_means_in_percent() -> None:
    answer = {
        "formats": {
            "float32": {"feed": 0.9, "reels": 0.8},
            **{n: {"feed": 0.909, "reels": 0.8} for n in ("int8", "int4", "kmeans4", "sign")},
            "bytes": {"int8": 16},
        }
    }
    figures = transfer._format_figures([answer])
    assert figures["int8_ne_cost_pct"] == pytest.approx(0.5)
    assert figures["int8_bytes"] == 16


def test_seeds_of_worlds_are_independent_and_those_of_one_set_are_paired() -> None:
    seeds = [nes(seed=1)["none"], nes(seed=1)["none"]]
    paired, mixed = (transfer._mean(seeds, source) for source in ("movielens", "planted"))
    assert paired.std() > 1.2 * mixed.std()
    assert paired[0] == mixed[0]


def test_formats_differ_from_coarse_to_fine() -> None:
    z = np.tanh(np.random.default_rng(0).normal(size=(500, 8))).astype(np.float32)
    found = in_formats(z)
    error = {name: float(np.square(codes - z).mean()) for name, codes in found.items()}
    assert error["float32"] == 0 < error["int8"] < error["kmeans4"] < error["int4"] < error["sign"]


def test_a_public_set_has_the_main_arms_alone() -> None:
    assert [v.name for v in variants(10.0, "main")] == ["main"]
    names = [v.name for v in variants(10.0, "all")]
    assert len(names) == len(set(names))
    assert {"user_id", "no_gap", "student_tiny", "adapter"} <= set(names)
    assert "none" in MAIN


def test_worlds_that_share_no_row_are_not_paired_but_their_arms_are() -> None:
    rng = np.random.default_rng(0)
    mine, theirs = rng.normal(0, 1, 501), rng.normal(0, 1, 501)
    found = mean_of_worlds([mine, mine])
    assert found[0] == mine[0]
    assert found.std() < 0.8 * mine.std()  # paired draws would have kept it
    other = mean_of_worlds([mine + 1, theirs + 2]) - mean_of_worlds([mine, theirs])
    assert other == pytest.approx(np.full(501, 1.5))


def test_a_home_folder_stays_where_one_was_named(tmp_path: Path) -> None:
    with home_folder(str(tmp_path / "kept"), "planted-0") as folder:
        (folder / "a").touch()
    assert (tmp_path / "kept" / "planted-0" / "a").is_file()
    with home_folder("", "planted-0") as made:
        assert made.is_dir()
    assert not made.exists()
