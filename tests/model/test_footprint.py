"""The arithmetic counts what the built model has, and about what autograd keeps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from model.config import ConfigError, ModelConfig
from model.footprint import activation_elements, dense_parameters
from model.foundation import DenseArch
from model.shape import reference_shape
from model.sizes import model_config
from model.summary import activation_bytes, parts_of

VARIANTS = {
    "small": {},
    "experts": {"wukong_experts": 3, "layers": 3},
    "plain pooling": {"pooling": "pma", "compskip": False},
    "no SumKron": {"sumkron_rank": 0},
    "no products": {"ad_products": 0},
    "no GDPA": {"pffn": "none", "last_attention": "skip"},
    "user context": {"gdpa_context": "user", "gdpa_short_path": 0, "qk_norm": True},
    "one width": {"width": 32, "embedding_dim": 32, "surface_experts": False},
    "heads on X": {"heads_read": "x", "last_attention": "skip", "summarize_norm": False},
}


def built(config: ModelConfig, size: str = "small") -> tuple[DenseArch, dict[str, int]]:
    shape, _ = reference_shape(size)
    dense = DenseArch(shape.features, shape.objectives, shape.num_surfaces, config)
    parts = parts_of(dense, shape.features, config)
    return dense, {name: p.parameters for name, p in parts.items() if name != "tables"}


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_parameters_are_those_of_the_built_model(changes):
    config = replace(ModelConfig(), **changes)
    shape, _ = reference_shape("small")
    counted = dense_parameters(config, shape.features, len(shape.objectives), shape.num_surfaces)
    assert counted == built(config)[1]


@pytest.mark.parametrize("size", ["small", "base"])
def test_activations_are_near_what_autograd_keeps(size):
    config = model_config(size)
    shape, _ = reference_shape(size)
    lengths = {e.name: e.max_len for e in shape.features.events}
    kept = activation_bytes(built(config, size)[0], shape.features, config, lengths) / 4
    assert activation_elements(config, shape.features, lengths) == pytest.approx(kept, rel=0.3)


def test_another_trunk_is_refused():
    shape, config = reference_shape("small")
    with pytest.raises(ConfigError, match=r"model\.arch must be kunlun .* got 'din'; use python"):
        dense_parameters(replace(config, arch="din"), shape.features, 2, 3)
