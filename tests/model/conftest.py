"""Fixtures of the model's tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from model_world import NUM_SURFACES, OBJECTIVES, planted_features

from model.config import FeatureSet, ModelConfig
from model.foundation import FoundationModel


@pytest.fixture
def features() -> FeatureSet:
    return planted_features()


@pytest.fixture
def build(features: FeatureSet) -> Callable[..., FoundationModel]:
    """build(width=8, ...) -> a seeded foundation model."""

    def make(**changes: object) -> FoundationModel:
        torch.manual_seed(0)
        return FoundationModel(
            features, OBJECTIVES, NUM_SURFACES, replace(ModelConfig(), **changes)
        )

    return make
