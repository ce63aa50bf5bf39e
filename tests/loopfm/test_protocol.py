"""The overrides that docs/transfer.md gives for the published protocol."""

from __future__ import annotations

import json
from pathlib import Path

from pipeline.loopfm.arms import ALL_ARMS, arms_named
from pipeline.run.config import with_overrides
from pipeline.run.presets import preset
from pipeline.run.window import HOUR_US, day_begin_us, window_of

DOCS = Path(__file__).resolve().parents[2] / "docs" / "transfer.md"


def test_the_published_protocol_is_a_config() -> None:
    text = DOCS.read_text().split("<!-- begin streaming -->")[1].split("<!-- end")[0]
    overrides = json.loads(text.replace("```json", "").replace("```", ""))
    config = with_overrides(preset("2017-05-13", "small", "taobaoad"), overrides)
    assert arms_named(config.transfer.arms) == tuple(
        arm for name in config.transfer.arms for arm in ALL_ARMS if arm.name == name
    )
    transfer = config.transfer
    assert (transfer.kd_alpha, transfer.kd_gamma, transfer.kd_beta) == (5.0, 10.0, 5.0)
    window = window_of(config)
    beijing = 8 * HOUR_US
    assert window.cut == day_begin_us("2017-05-13") - beijing  # the last day's first moment there
    assert window.students_begin == day_begin_us("2017-05-10")
