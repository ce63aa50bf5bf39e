"""MXFP8 by layer: what is lowered, what a snapshot shares, training, and the probe."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from model_world import OBJECTIVES, make_batch, planted_features, take_row
from torch import nn

import kernels
from model.config import ConfigError, ModelConfig
from model.flops import flops_by_part
from model.foundation import FoundationModel, training_loss
from model.precision import Linear, candidates, choose_precision, precision_note
from model.probe import LayerSqnr, probe
from model.snapshot import load_snapshot, save_snapshot

LOW = {"precision": "mxfp8", "mxfp8_keep_last": 0}
Build = Callable[..., FoundationModel]


def low_names(model: FoundationModel) -> set[str]:
    return {name for name, layer in candidates(model.dense).items() if layer.low}


def test_a_low_layer_multiplies_rounded_factors_and_adds_its_bias_in_float32():
    torch.manual_seed(0)
    layer, x = Linear(40, 24), torch.randn(3, 5, 40)
    exact = layer(x)
    torch.testing.assert_close(exact, nn.functional.linear(x, layer.weight, layer.bias))
    layer.low = True
    want = kernels.mxfp8_linear(x.view(15, 40), layer.weight).view(3, 5, 24) + layer.bias
    torch.testing.assert_close(layer(x), want, rtol=0, atol=0)
    assert 20 < kernels.sqnr_db(exact, layer(x)) < 40
    assert layer(x[:0]).shape == (0, 5, 24)


def test_gdpa_attention_and_the_interaction_are_lowered_and_nothing_else(build):
    low, plain = build(**LOW), build()
    assert low_names(plain) == set()
    assert low_names(low) == candidates(low.dense).keys()
    parts = {name.split(".", 4)[-1] for name in low_names(low)}
    want = {f"experts.0.pairs.{p}" for p in ("attend", "mlp.0", "mlp.2")}
    gdpa = ("generate.hidden", "generate.out", "generate.short", "query", "out")
    attention = ("query_key", "value", "out")
    want |= {f"{tower}.{p}" for tower in ("shown", "organic") for p in (*gdpa, *attention)}
    assert parts == want


def test_names_and_late_layers_are_kept(build):
    low = low_names(build(**LOW))
    assert low_names(build(precision="mxfp8")) == {n for n in low if "layers.0." in n}
    keep = ("*.generate.*", "trunk.layers.1.attention.shown.out")
    kept = low - low_names(build(**LOW, mxfp8_keep=keep))
    assert kept == {n for n in low if ".generate." in n} | {keep[1]}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mxfp8_keep": ("trunk.layers.1.attention.shown.outt",)}, ("mxfp8_keep", "shown.out'")),
        ({"mxfp8_keep": ("heads.*",)}, ("mxfp8_keep", "heads.*", "pipeline probe")),
        ({"mxfp8_keep": ("*",)}, ("model.precision", "keep fewer")),
        ({"mxfp8_keep_last": 2}, ("model.precision", "mxfp8_keep_last")),
        ({"mxfp8_keep_last": -1}, ("mxfp8_keep_last", "at least 0")),
        ({"arch": "din"}, ("model.precision", "arch din has 0 layers")),
    ],
)
def test_what_cannot_be_lowered_is_refused_with_the_remedy(build, changes, words):
    with pytest.raises(ConfigError) as raised:
        build(**LOW | changes)
    assert all(word in str(raised.value) for word in words), raised.value


def test_weights_and_their_names_are_those_of_float32(build):
    low, plain = build(**LOW), build()
    own, other = low.state_dict(), plain.state_dict()
    assert own.keys() == other.keys()
    assert all(torch.equal(own[name], other[name]) for name in own)
    batch = make_batch(planted_features())
    before = plain(batch).logits_BK
    low.load_state_dict(other)
    plain.load_state_dict(low.state_dict())
    torch.testing.assert_close(plain(batch).logits_BK, before, rtol=0, atol=0)


@pytest.mark.parametrize("arch", ["kunlun", "interformer", "wukong", "wukong_pma"])
def test_outputs_are_near_and_gradients_reach_every_weight(build, arch):
    batch = make_batch(planted_features(), num_rows=64)
    low, plain = build(arch=arch, **LOW), build(arch=arch)
    outputs = low(batch)
    difference = kernels.sqnr_db(plain(batch).logits_BK, outputs.logits_BK)
    assert 20 < difference < math.inf
    training_loss(outputs, batch, torch.ones(2)).backward()
    for name, layer in candidates(low.dense).items():
        assert layer.weight.grad is not None, name
        assert layer.weight.grad.count_nonzero(), name
    tables = low.sparse.tables.weights
    assert all(tables[name].grad.count_nonzero() for name in ("user", "ad"))


def test_a_row_is_predicted_alike_in_any_batch_and_without_events(build):
    features = planted_features()
    batch = make_batch(features, num_rows=8, length=0)
    model = build(**LOW).eval()
    alone = torch.cat([model(take_row(batch, row)).logits_BK for row in range(8)])
    torch.testing.assert_close(model(batch).logits_BK, alone, rtol=1e-5, atol=1e-6)
    training_loss(model(batch), batch, torch.ones(2)).backward()
    assert all(
        layer.weight.grad is None or layer.weight.grad.isfinite().all()
        for layer in candidates(model.dense).values()
    )


def test_training_steps_follow_those_of_float32(build):
    features = planted_features()
    losses = {}
    for name, changes in (("low", LOW), ("plain", {})):
        model = build(**changes)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        losses[name] = []
        for _ in range(4):
            batch = make_batch(features, num_rows=64, seed=0)
            loss = training_loss(model(batch), batch, torch.ones(2))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses[name].append(loss.item())
    assert losses["low"][-1] < 0.99 * losses["low"][0]
    assert losses["low"] == pytest.approx(losses["plain"], rel=0.01)
    assert losses["low"] != losses["plain"]


def test_flops_count_projected_events():
    features, lengths = planted_features(), {"shown": 20, "organic": 20}
    low = flops_by_part(ModelConfig(precision="mxfp8"), features, 2, lengths)
    plain = flops_by_part(ModelConfig(), features, 2, lengths)
    assert {n for n in low if low[n] != plain[n]} <= {n for n in low if "gdpa" in n or "feed" in n}


def test_the_note_says_that_the_format_is_emulated(build):
    assert precision_note(build().dense) == "float32"
    assert precision_note(build(precision="mxfp8").dense).startswith(
        "mxfp8 in 13 of 22 layers that can, emulated ("
    )


class TwoLayers(nn.Module):
    """A layer whose products cancel, behind one whose do not."""

    def __init__(self) -> None:
        super().__init__()
        self.plain, self.cancels = Linear(64, 64, bias=False), Linear(64, 64, bias=False)
        column = torch.randn(64, 1)
        self.cancels.weight = nn.Parameter(torch.cat([column, -column], 1).repeat(1, 32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        near = self.plain(x).mean(1, keepdim=True).expand(-1, 64)
        return self.cancels(near + 1e-3 * torch.randn_like(near))


def test_the_probe_finds_the_layer_whose_products_cancel():
    torch.manual_seed(0)
    model = TwoLayers()
    found = probe(model, lambda x: model(x).square().sum(), [torch.randn(96, 64)] * 2)
    assert found.keys() == {"plain", "cancels"}
    for layer in found.values():
        assert 28 < layer.weight_db < 36
        assert layer.gradient_db > 25
    assert found["plain"].is_safe()
    assert found["cancels"].output_db < 20
    assert not found["cancels"].is_safe()
    assert found["cancels"].is_safe(threshold_db=-100)
    assert model.plain.weight.grad is None
    assert not model.plain._forward_hooks


def test_a_layer_that_saw_nothing_is_not_called_unsafe():
    assert LayerSqnr().is_safe()
    note = LayerSqnr()
    note.note("output_db", torch.zeros(2, 2), torch.zeros(2, 2))
    assert math.isinf(note.output_db)


def test_a_dense_part_without_such_layers_is_refused():
    with pytest.raises(ConfigError, match="0 layers"):
        choose_precision(nn.Linear(2, 2), ModelConfig(precision="mxfp8"))


def test_a_snapshot_keeps_its_precision(build, tmp_path):
    model, config = build(**LOW, mxfp8_keep=("*.query",)), {**LOW, "mxfp8_keep": ("*.query",)}
    save_snapshot(
        tmp_path,
        model,
        features=planted_features(),
        objectives=OBJECTIVES,
        surfaces=("a", "b", "c"),
        config=ModelConfig(**config),
        extra={},
    )
    batch, loaded = make_batch(planted_features()), load_snapshot(tmp_path)
    assert low_names(loaded) == low_names(model)
    torch.testing.assert_close(loaded(batch).logits_BK, model.eval()(batch).logits_BK)
