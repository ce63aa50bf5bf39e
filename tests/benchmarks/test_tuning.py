"""The tuner: one design for all, and tables that a command renews."""

from __future__ import annotations

import pytest

from benchmarks._axes import above, settings
from benchmarks._experiments import replace_section, table
from benchmarks._trials import DENSE_LR, DROPOUT, SPARSE_LR, WIDTHS, design
from model.config import ConfigError
from pipeline.run.config import with_overrides
from pipeline.run.presets import preset


def test_the_design_is_seeded_and_begins_with_the_configs_own_dials():
    config = preset("2026-11-29", "small")
    points = design(8, config)
    assert points == design(8, config) != design(8, config, seed=1)
    assert points[:4] == design(4, config)
    assert points[0].dense_lr == config.train.dense_lr
    assert points[0].width == config.model.width
    for point in points[1:]:
        assert DENSE_LR[0] <= point.dense_lr <= DENSE_LR[1]
        assert SPARSE_LR[0] <= point.sparse_lr <= SPARSE_LR[1]
        assert point.width in WIDTHS
        assert 0 <= point.dropout <= DROPOUT
    with pytest.raises(ConfigError, match="trials must be at least 1"):
        design(0, config)


def test_a_section_is_renewed_and_the_rest_is_kept(tmp_path):
    path = tmp_path / "experiments.md"
    path.write_text("# Experiments\n\nWritten by hand.\n")
    replace_section(path, "one", table(("a", "b"), [("1", "2")]))
    replace_section(path, "two", "second")
    replace_section(path, "one", table(("a", "b"), [("3", "4")]))
    text = path.read_text()
    assert text.startswith("# Experiments\n\nWritten by hand.\n\n<!-- begin one -->\n| a | b |")
    assert "| 3 | 4 |" in text
    assert "| 1 | 2 |" not in text
    assert text.count("begin one") == text.count("begin two") == 1


def test_a_sweep_changes_one_thing_at_a_time_and_names_known_fields():
    config = preset("2026-11-29", "small")
    found = settings(config.train.dense_lr)
    assert found[0].changes == {}
    assert all(len(setting.changes) == 1 for setting in found[1:])
    swept = [with_overrides(config, setting.changes) for setting in found]
    assert len({c.run_name for c in swept}) == len(found), "no setting repeats the config's own"


def test_two_seeds_that_disagree_say_nothing():
    assert above((0.9, 0.9), (0.9, 0.9)) == ["0", ""]
    assert above((0.91, 0.89), (0.90, 0.90))[1] == "within noise"
    assert above((0.92,), (0.90,))[1] == "one seed says nothing"
    assert above((0.9201, 0.9200), (0.90, 0.90))[1] == "worse"
