"""Combinations that no model can have are refused by name, value and remedy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from reference_world import BASE, unlike_towers

from model.config import ConfigError, ModelConfig, check_towers
from pipeline.run.config import with_overrides
from pipeline.run.presets import preset


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"gdpa_context": "user"}, ("model.gdpa_short_path", "user", "must not")),
        ({"gdpa_tau": 0.0}, ("model.gdpa_tau", "above 0")),
        ({"rote_tau_s": -1.0}, ("model.rote_tau_s", "above 0")),
        ({"representation_layers": ()}, ("model.representation_layers", "from 1 to")),
        ({"representation_layers": (0,)}, ("model.representation_layers", "from 1 to")),
        ({"representation_layers": (9,)}, ("model.representation_layers", "use (1,)")),
        ({"layers": 0}, ("model.layers", "at least 1")),
        ({"sumkron_rank": -1}, ("model.sumkron_rank", "at least 0")),
        ({"attention_block": 0}, ("model.attention_block", "at least 1")),
    ],
)
def test_wrong_shapes(changes: dict[str, Any], words: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as raised:
        replace(ModelConfig(), **changes)
    assert all(word in str(raised.value) for word in words)


@pytest.mark.parametrize(
    ("changes", "tower", "words"),
    [
        ({"seeds": 3}, {}, ("events.click.tokens", "model.seeds = 3", "raise")),
        ({"gdpa_activation": ("gelu",) * 3}, {}, ("events.click.heads", "3 names")),
        ({"gdpa_activation": ()}, {}, ("events.click.heads", "0 names")),
        ({"heads_read": "x", "layers": 2}, {}, ("model.last_attention", "click", "use skip")),
        ({}, {"layers": 9}, ("events.click.layers", "at most model.layers = 3", "9")),
        ({}, {"width": 9}, ("events.click.width", "a multiple of 4", "9")),
        ({}, {"width": 6}, ("events.click.width", "even width", "use 4")),
        ({}, {"window": 0}, ("events.click.window", "at least 1")),
    ],
)
def test_towers_that_do_not_fit(
    changes: dict[str, Any], tower: dict[str, int], words: tuple[str, ...]
) -> None:
    click, *others = unlike_towers().events
    features = replace(unlike_towers(), events=(replace(click, **tower), *others))
    with pytest.raises(ConfigError) as raised:
        check_towers(features, replace(BASE, **changes))
    assert all(word in str(raised.value) for word in words), raised.value


def test_what_fits_is_let_through() -> None:
    click, *others = unlike_towers(view=1).events
    features = replace(unlike_towers(), events=(replace(click, width=6), *others))
    check_towers(features, replace(BASE, rote="none", pooling="pma", seeds=1))
    check_towers(unlike_towers(), replace(BASE, heads_read="x"))  # ends on pooling


def test_a_user_context_needs_a_user() -> None:
    features = unlike_towers()
    ads = tuple(f for f in features.sparse if f.scope == "ad")
    with pytest.raises(ConfigError, match="declare a user or request feature"):
        check_towers(
            replace(features, sparse=ads), replace(BASE, gdpa_context="user", gdpa_short_path=0)
        )


def test_a_run_is_refused_before_it_starts() -> None:
    with pytest.raises(ConfigError, match=r"events\.shown\.tokens.*model\.seeds = 2"):
        with_overrides(preset("2026-11-29", "smoke"), {"model.seeds": 2})


@pytest.mark.parametrize(
    ("field", "value", "kept"),
    [
        ("gdpa_activation", ["gelu", "relu"], ("gelu", "relu")),
        ("gdpa_activation", "silu", "silu"),
        ("gdpa_tau", "max_len", "max_len"),
        ("gdpa_tau", 32, 32.0),
        ("rote_phi_base", 10, 10.0),
        ("rote_phi_base", None, None),
    ],
)
def test_overrides_of_many_kinds(field: str, value: object, kept: object) -> None:
    config = with_overrides(preset("2026-11-29", "smoke"), {f"model.{field}": value})
    assert getattr(config.model, field) == kept


@pytest.mark.parametrize(
    ("field", "value"), [("gdpa_activation", "tanh"), ("gdpa_tau", "huge"), ("gdpa_tau", True)]
)
def test_wrong_overrides_of_many_kinds(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"model.{field}"):
        with_overrides(preset("2026-11-29", "smoke"), {f"model.{field}": value})
