from __future__ import annotations

import math
from typing import Any

import pytest

from pipeline.run.config import with_overrides
from pipeline.run.errors import ConfigError
from pipeline.run.planted import PlantedConfig
from pipeline.run.presets import preset

BAD: list[tuple[str, Any, str]] = [
    ("users", 0, r"source\.planted\.users must be above 0, got 0"),
    ("finalists", -1, r"source\.planted\.finalists must be above 0"),
    ("organic_per_user_day", math.nan, r"organic_per_user_day must be at least 0"),
    ("shares", (0.5, 0.5), r"shares must be 3 long, one per surface of \['feed'"),
    ("shares", (0.6, 0.4, 0.0), r"shares must be above 0 each"),
    ("shares", (0.6, 0.3, 0.2), r"shares must be such that they add up to 1"),
    ("memory_days", 11.0, r"memory_days must be in \(0, 10\]"),
    ("memory_events", 0, r"source\.planted\.memory_events must be above 0"),
    ("activity_sd", 0.0, r"activity_sd must be in \(0, 2\]"),
]


@pytest.mark.parametrize(("name", "value", "message"), BAD)
def test_a_wrong_setting_is_named_with_its_remedy(name: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PlantedConfig(**{name: value})


def test_shares_can_be_overridden_and_change_the_dataset() -> None:
    config = preset("2026-11-20", "smoke")
    other = with_overrides(config, {"source.planted.shares": [0.65, 0.25, 0.1]})
    assert other.source.planted is not None
    assert other.source.planted.shares == (0.65, 0.25, 0.1)
    assert other.dataset != config.dataset
