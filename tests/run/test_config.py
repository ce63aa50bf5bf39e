"""Configs survive JSON, and wrong ones say what is wrong."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from pipeline.run.codec import from_dict, to_dict
from pipeline.run.config import RunConfig, with_overrides
from pipeline.run.errors import ConfigError
from pipeline.run.presets import SIZES, preset

DAY = "2026-11-29"


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("source", ["planted", "openbandit", "movielens", "tafeng"])
def test_round_trip(size: str, source: str) -> None:
    config = preset(DAY, size, source)
    text = json.dumps(to_dict(config))
    again = from_dict(RunConfig, json.loads(text))
    assert again == config
    assert (again.dataset, again.lineage, again.run_name) == (
        config.dataset,
        config.lineage,
        config.run_name,
    )


def test_names_follow_what_they_name() -> None:
    config = preset(DAY, "smoke")
    other = with_overrides(config, {"mix.alpha": 0.5})
    assert other.run_name != config.run_name
    assert (other.lineage, other.dataset) == (config.lineage, config.dataset)
    wider = with_overrides(config, {"model.layers": 3})
    assert wider.lineage != config.lineage
    assert wider.dataset == config.dataset


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"mix.alpha": 1.4}, ("mix.alpha", "1.4", "use 1.0")),
        ({"mix.alfa": 0.5}, ("mix.alfa", "choose among")),
        ({"mixing.alpha": 0.5}, ("mixing.alpha", "choose among")),
        ({"mix": 0.5}, ("mix", "0.5")),
        ({"train.batch_size": "many"}, ("train.batch_size", "many", "int")),
        ({"train.batch_size": True}, ("train.batch_size", "True")),
        ({"day": DAY}, ("day", "own parameter")),
        ({"window.student_days": 99}, ("window.student_days", "99")),
        ({"mix.reference_surface": "tv"}, ("mix.reference_surface", "tv", "feed")),
        ({"train.ranks": 3}, ("train.ranks", "3", "raise window.num_buckets")),
        ({"train.zero_stage": 1}, ("train.zero_stage", "0 on one rank")),
        (
            {"train.ranks": 2, "train.layout.dense_replica": 1, "train.layout.expert": 2},
            ("train.layout.expert", "at most 1", "raise model.wukong_experts"),
        ),
    ],
)
def test_a_wrong_override_names_field_value_and_remedy(
    overrides: dict[str, Any], words: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigError) as raised:
        with_overrides(preset(DAY, "smoke"), overrides)
    for word in words:
        assert word in str(raised.value)


@pytest.mark.parametrize("day", ["", "20261129", "2026-11-31", "29.11.2026", "2026-W48-1"])
def test_a_wrong_day_is_refused(day: str) -> None:
    with pytest.raises(ConfigError, match="day must be a date"):
        preset(day, "smoke")


def test_an_unknown_field_in_a_file_is_refused() -> None:
    data = to_dict(preset(DAY, "smoke"))
    data["window"]["holdout"] = 3
    with pytest.raises(ConfigError, match=r"window\.holdout"):
        from_dict(RunConfig, data)


def test_a_surface_cannot_be_named_like_the_total() -> None:
    config = preset("2026-11-29", "smoke")
    with pytest.raises(ConfigError, match="'overall', which names all"):
        replace(config, surfaces=("feed", "overall"))
