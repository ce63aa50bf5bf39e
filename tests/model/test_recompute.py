"""Activations that are computed again: the same numbers, less memory, clear budgets."""

from __future__ import annotations

from typing import cast

import pytest
import torch
from model_world import NUM_SURFACES, OBJECTIVES, make_batch, planted_features

from model.budgets import Keep
from model.config import ConfigError, ModelConfig
from model.foundation import FoundationModel, training_loss
from model.recompute import REGIONS, give_up, keep_note, recomputed
from model.summary import activation_bytes

NOTHING = Keep(attention=0.0, interaction=0.0, heads=0.0)


def build(keep: Keep) -> FoundationModel:
    torch.manual_seed(0)
    model = FoundationModel(planted_features(), OBJECTIVES, NUM_SURFACES, ModelConfig()).train()
    give_up(model.dense, keep)
    return model


def gradients(keep: Keep) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    model, batch = build(keep), make_batch(planted_features(), 32, seed=1)
    loss = training_loss(model(batch), batch, torch.ones(2))
    loss.backward()
    found = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    return loss.detach(), found


def held(keep: Keep) -> float:
    features = planted_features()
    lengths = {event.name: event.max_len for event in features.events}
    return activation_bytes(build(keep).dense, features, ModelConfig(), lengths)


@pytest.mark.parametrize("region", [*REGIONS, "all"])
def test_what_is_computed_again_is_the_same_to_the_bit(region: str) -> None:
    whole = gradients(Keep())
    less = gradients(NOTHING if region == "all" else Keep(**{region: 0.0}))
    assert torch.equal(less[0], whole[0])
    assert less[1].keys() == whole[1].keys()
    assert all(torch.equal(less[1][name], whole[1][name]) for name in whole[1])


@pytest.mark.parametrize("region", REGIONS)
def test_less_is_kept_for_backward(region: str) -> None:
    less = held(Keep(**{region: 0.0}))
    assert held(NOTHING) < less < held(Keep())


def test_a_budget_keeps_the_last_modules_of_its_region() -> None:
    torch.manual_seed(0)
    model = FoundationModel(planted_features(), OBJECTIVES, NUM_SURFACES, ModelConfig(layers=4))
    layers = cast(torch.nn.ModuleList, model.dense.trunk.layers)
    given = give_up(model.dense, Keep(interaction=0.5))
    assert given == {
        "attention": (0, given["attention"][1]),
        "interaction": (2, 4),
        "heads": (0, 1),
    }
    again = ["forward" in vars(layer.interact) for layer in layers]
    assert again == [True, True, False, False]
    assert len(recomputed(model.dense)) == 2
    assert keep_note(given) == "2 of 4 in interaction"
    assert keep_note(give_up(build(Keep()).dense, Keep())) == "nothing"


@pytest.mark.parametrize("share", [-0.1, 1.5])
def test_a_share_outside_of_its_range_is_refused(share: float) -> None:
    with pytest.raises(ConfigError, match=r"train\.keep\.heads must be in \[0, 1\]"):
        Keep(heads=share)


def test_a_budget_of_a_region_that_the_model_lacks_is_refused() -> None:
    config = ModelConfig(arch="dcnv2")
    model = FoundationModel(planted_features(), OBJECTIVES, NUM_SURFACES, config)
    with pytest.raises(ConfigError, match=r"train\.keep\.interaction must be 1\.0 for a model"):
        give_up(model.dense, Keep(interaction=0.5))
