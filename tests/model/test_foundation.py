"""The foundation model: shapes, switches, leakage, learning, snapshots."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest
import torch
from model_world import NUM_SURFACES, OBJECTIVES, make_batch, take_row
from torch.utils.flop_counter import FlopCounterMode

from model.config import ModelConfig
from model.flops import flops_by_part, flops_per_row
from model.foundation import training_loss
from model.snapshot import config_from, features_from, load_snapshot, read_meta, save_snapshot

SWITCHES = [
    {},
    {"compskip": False},
    {"attention": "full"},
    {"gdpa_context": "user", "gdpa_short_path": 0},
    {"gdpa_short_path": 0},
    {"pooling": "pma"},
    {"qk_norm": True},
    {"layers": 3},
    {"layers": 1},
    {"wukong_experts": 3},
    {"embedding_dim": 8},
    {"rote": "none"},
    {"sumkron_rank": 1},
    {"sumkron_rank": 0},
    {"pffn": "none"},
    {"gdpa_activation": ("silu", "relu_square")},
    {"gdpa_tau": "max_len", "summary_tokens": 20},
    {"summarize_norm": False},
    {"last_attention": "skip"},
    {"compskip": False, "last_attention": "skip", "heads_read": "x"},
    {"attention": "block", "attention_block": 7},
    {"rote_phi_base": 100.0},
    {"partition": "contiguous", "residual_init": "random", "wukong_experts": 2},
    {"surface_experts": False},
]
switches = pytest.mark.parametrize(
    "changes", SWITCHES, ids=lambda c: "-".join(f"{k}={v}" for k, v in c.items()) or "default"
)


@switches
def test_flops_equal_those_of_torch(build, features, changes):
    changes = {"attention": "full", **changes}  # eager attention computes the whole square
    model, rows, length = build(**changes).eval(), 32, 24
    batch = make_batch(features, rows, length=length)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(batch)
    config = replace(ModelConfig(), **changes)
    lengths = {e.name: torch.full((rows,), length) for e in features.events}
    mine = flops_per_row(config, features, 2, lengths, NUM_SURFACES).sum().item()
    assert mine == pytest.approx(counter.get_total_flops(), rel=0.01)


@switches
def test_every_switch_trains_every_parameter(build, features, changes):
    model = build(**changes).train()
    batch = make_batch(features, 64)
    training_loss(model(batch), batch, torch.ones(2)).backward()
    dead = [n for n, p in model.named_parameters() if p.grad is None]
    assert dead == []


@pytest.mark.parametrize(
    ("changes", "cheaper"),
    [
        ({"compskip": False}, False),
        ({"pooling": "pma"}, True),
        ({"gdpa_short_path": 0}, True),
        ({"sumkron_rank": 1}, True),
        ({"attention": "full"}, False),
    ],
)
def test_switches_move_flops(features, changes, cheaper):
    lengths = {"shown": 32, "organic": 24}
    base = flops_per_row(ModelConfig(), features, 2, lengths)
    changed = flops_per_row(replace(ModelConfig(), **changes), features, 2, lengths)
    assert (changed < base) == cheaper
    assert changed != base


def test_flops_follow_lengths(features):
    none = flops_by_part(ModelConfig(), features, 2, {"shown": 0, "organic": 0})
    assert none["shown.entry"] == none["shown.attention"] == 0
    few = flops_per_row(ModelConfig(), features, 2, {"shown": 4, "organic": 0})
    assert sum(none.values()) < few


def test_labels_do_not_reach_the_output(build, features):
    model, batch = build().eval(), make_batch(features)
    other = replace(batch, labels_BK=1 - batch.labels_BK, mask_BK=batch.mask_BK * 0)
    with torch.no_grad():
        a, b = model(batch), model(other)
    assert torch.equal(a.logits_BK, b.logits_BK)
    assert torch.equal(a.representation_Bd, b.representation_Bd)


def test_masked_labels_give_no_gradient(build, features):
    model, batch = build().train(), make_batch(features)
    losses = []
    for flip in (False, True):
        labels = torch.where(batch.mask_BK > 0, batch.labels_BK, float(flip))
        changed = replace(batch, labels_BK=labels)
        losses.append(training_loss(model(changed), changed, torch.ones(2)).item())
    assert losses[0] == losses[1]


def test_rows_do_not_depend_on_their_batch(build, features):
    model, batch = build().eval(), make_batch(features, 12)
    with torch.no_grad():
        whole = model(batch)
        for row in (0, 5, 11):
            alone = model(take_row(batch, row))
            torch.testing.assert_close(alone.logits_BK[0], whole.logits_BK[row], atol=1e-5, rtol=0)
            torch.testing.assert_close(
                alone.representation_Bd[0], whole.representation_Bd[row], atol=1e-5, rtol=0
            )


def test_user_context_keeps_towers_free_of_the_ad(build, features):
    model = build(gdpa_context="user", gdpa_short_path=0).eval()
    seen = []
    model.dense.trunk.register_forward_hook(lambda m, i, o: seen.append(o.h_BQD))
    batch = make_batch(features)
    ids_BF = batch.ids_BF.clone()
    ids_BF[:, [i for i, f in enumerate(features.sparse) if f.scope == "ad"]] = 1
    with torch.no_grad():
        model(batch)
        model(replace(batch, ids_BF=ids_BF))
    assert torch.equal(seen[0], seen[1])


def test_surface_experts_start_from_the_shared_model(build):
    experts = build().dense.heads.experts
    x = torch.randn(5, experts.down.in_features)
    assert torch.equal(experts(x, torch.tensor([0, 1, 2, 0, 1])), x)


def test_compressor_sends_no_gradient_into_the_model(build, features):
    model = build().train()
    model(make_batch(features)).reconstruction.backward()
    touched = {n for n, p in model.named_parameters() if p.grad is not None}
    assert touched == {n for n, _ in model.named_parameters() if n.startswith("dense.compressor.")}


def test_batch_without_any_events(build, features):
    batch = make_batch(features, length=0)
    model = build().train()
    training_loss(model(batch), batch, torch.ones(2)).backward()
    assert torch.isfinite(model(batch).logits_BK).all()


def test_learns_a_rule(build, features):
    model = build().train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    batch = make_batch(features, 256)
    losses = []
    for _ in range(40):
        loss = training_loss(model(batch), batch, torch.ones(2))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


def test_snapshot_round_trip(build, features, tmp_path):
    model, batch = build().eval(), make_batch(features)
    for folder in ("a", "b"):
        save_snapshot(
            tmp_path / folder,
            model,
            features=features,
            objectives=OBJECTIVES,
            surfaces=("x", "y", "z"),
            config=ModelConfig(),
            extra={"fm_cut_us": 5},
        )
    for name in ("dense.safetensors", "tables.safetensors", "meta.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    loaded = load_snapshot(tmp_path / "a")
    assert read_meta(tmp_path / "a")["extra"] == {"fm_cut_us": 5}
    with torch.no_grad():
        torch.testing.assert_close(loaded(batch).logits_BK, model(batch).logits_BK)
    assert not loaded.training


def test_features_survive_json(features):
    assert features_from(json.loads(json.dumps(asdict(features)))) == features


def test_config_survives_json():
    config = replace(ModelConfig(), gdpa_activation=("gelu", "relu"), gdpa_tau=3.0)
    assert config_from(json.loads(json.dumps(asdict(config)))) == config
