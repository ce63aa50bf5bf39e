"""The baselines: their trunks against the papers' equations, their FLOPs, and the model around."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from model_world import NUM_SURFACES, OBJECTIVES, make_batch, take_row
from torch.utils.flop_counter import FlopCounterMode
from trunk_reference import REFERENCES

import kernels
from model.baselines.mean import MeanEntry
from model.baselines.widths import num_products, read_width, represented_width
from model.config import ConfigError, FeatureSet, ModelConfig
from model.embedding import EventInputs
from model.flops import flops_by_part, flops_per_row
from model.foundation import FoundationModel, build_trunk, training_loss
from model.kunlun import Context
from model.sequence import EventEntry, Sequence
from model.snapshot import load_snapshot, save_snapshot

ARCHS = tuple(REFERENCES)
archs = pytest.mark.parametrize("arch", ARCHS)
LENGTHS = {
    "mixed": [3, 0, 7, 1, 0, 5],
    "equal": [4, 4, 4],
    "one-event": [1],
    "empty": [0, 0],
}


class Inputs:
    """Random X and towers in float64, as a trunk reads them and row by row."""

    def __init__(self, features: FeatureSet, config: ModelConfig, lengths: list[int]) -> None:
        torch.manual_seed(1)
        ads = [i for i, f in enumerate(features.sparse) if f.scope == "ad"]
        num_x = len(features.sparse) + bool(features.dense_columns)
        self.x_BND = torch.randn(len(lengths), num_x, config.width).double().requires_grad_()
        self.ad_BX = self.x_BND[:, ads].flatten(1)
        self.towers, self.flat, self.rows = {}, [], [{} for _ in lengths]
        for place, event in enumerate(features.events):
            mine = torch.tensor(lengths).roll(place)
            state = torch.randn(int(mine.sum()), event.width).double().requires_grad_()
            angle = torch.rand(int(mine.sum()), event.width // event.heads // 2).double()
            layout = kernels.arrange(mine)
            self.towers[event.name] = Sequence(layout.pack(state), layout.pack(angle), layout)
            self.flat.append(state)
            cut = zip(state.split(mine.tolist()), angle.split(mine.tolist()), strict=True)
            for row, both in zip(self.rows, cut, strict=True):
                row[event.name] = both

    @property
    def leaves(self) -> list[torch.Tensor]:
        return [self.x_BND, *self.flat]


@archs
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS.keys())
@pytest.mark.parametrize("layers", [1, 2])
def test_a_trunk_equals_its_equations(features, arch, lengths, layers, monkeypatch):
    monkeypatch.setattr("kernels.layout.BUCKET_COST", 1)  # as many buckets as there can be
    config = ModelConfig(arch=arch, layers=layers)
    torch.manual_seed(0)
    trunk, inputs = build_trunk(features, config).double(), Inputs(features, config, lengths)
    out = trunk(inputs.x_BND, inputs.towers, Context(inputs.ad_BX, None))
    got = [t.flatten(1) for t in (out.x_BND, out.h_BQD, out.represented_BND)]
    rows = zip(inputs.x_BND, inputs.ad_BX, inputs.rows, strict=True)
    want = [torch.stack(t) for t in zip(*(REFERENCES[arch](trunk, *r) for r in rows), strict=True)]
    for mine, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(mine, theirs)
    leaves = [*inputs.leaves, *trunk.parameters()]
    for mine, theirs in zip(gradients(got, leaves), gradients(want, leaves), strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-9, rtol=1e-7)


def gradients(outputs: list[torch.Tensor], leaves: list[torch.Tensor]) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(2)
    total = sum((t * torch.randn(t.shape, generator=draw).double()).sum() for t in outputs)
    found = torch.autograd.grad(total, leaves, allow_unused=True, retain_graph=True)
    return [torch.zeros_like(x) if g is None else g for g, x in zip(found, leaves, strict=True)]


def test_a_row_without_events_has_no_summary(features):
    config = ModelConfig(arch="interformer")
    inputs = Inputs(features, config, [0, 0, 0])
    trunk = build_trunk(features, config).double()
    out = trunk(inputs.x_BND, inputs.towers, Context(inputs.ad_BX, None))
    assert out.h_BQD.shape[1:] == (8 * len(features.events), config.width)
    assert not out.h_BQD.any()


@archs
@pytest.mark.parametrize("length", [0, 1, 24])
@pytest.mark.parametrize(
    "changes",
    [{}, {"width": 32, "layers": 3}, {"ad_products_for": "all", "ad_products": 200}],
    ids=["default", "wider", "products"],
)
def test_flops_equal_those_of_torch(build, features, arch, length, changes):
    changes, rows = {"arch": arch, **changes}, 8
    model, batch = build(**changes).eval(), make_batch(features, rows, length=length)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(batch)
    lengths = {e.name: length for e in features.events}
    mine = rows * flops_per_row(ModelConfig(**changes), features, 2, lengths, NUM_SURFACES)
    assert mine == pytest.approx(counter.get_total_flops(), rel=0.01)


@archs
def test_flops_of_many_rows_at_once(features, arch):
    lengths = {"shown": np.array([0, 3, 32]), "organic": np.array([5, 0, 24])}
    config = ModelConfig(arch=arch)
    each = flops_per_row(config, features, 2, lengths)
    for row, cost in enumerate(each):
        mine = {name: int(counts[row]) for name, counts in lengths.items()}
        assert cost == flops_per_row(config, features, 2, mine)


@archs
def test_shared_parts_cost_the_same_for_every_trunk(features, arch):
    lengths = {"shown": 20, "organic": 10}
    parts = flops_by_part(ModelConfig(arch=arch), features, 2, lengths)
    kunlun = flops_by_part(ModelConfig(), features, 2, lengths)
    assert parts["tokens"] == kunlun["tokens"]
    for name, length in lengths.items():
        # DCNv2 projects the mean of a row's events alone
        once = length if arch == "dcnv2" else 1
        assert parts[f"{name}.entry"] * once == kunlun[f"{name}.entry"]


@archs
def test_products_with_the_ad_are_kunluns_alone_unless_told(build, features, arch):
    assert not build(arch=arch).dense.products
    assert build(arch=arch, ad_products_for="all").dense.products
    assert build().dense.products
    assert not build(ad_products=0).dense.products


@archs
def test_every_parameter_trains_and_widths_are_as_declared(build, features, arch):
    model, batch = build(arch=arch).train(), make_batch(features, 64)
    seen = []
    model.dense.trunk.register_forward_hook(lambda m, i, o: seen.append(o))
    training_loss(model(batch), batch, torch.ones(2)).backward()
    assert [n for n, p in model.named_parameters() if p.grad is None] == []
    config, out = ModelConfig(arch=arch), seen[0]
    assert out.x_BND[0].numel() + out.h_BQD[0].numel() == read_width(features, config)
    assert out.represented_BND[0].numel() == represented_width(features, config)


@pytest.mark.parametrize("arch", [*REFERENCES, "kunlun"])
def test_a_representation_may_join_layers(features, arch):
    def represented(*layers: int) -> torch.Tensor:
        config = ModelConfig(arch=arch, layers=2, representation_layers=layers)
        torch.manual_seed(0)
        trunk = build_trunk(features, config).double()
        inputs = Inputs(features, config, LENGTHS["mixed"])
        out = trunk(inputs.x_BND, inputs.towers, Context(inputs.ad_BX, None))
        beside = num_products(features, config)  # what heads read of products, is represented too
        assert out.represented_BND[0].numel() + beside == represented_width(features, config)
        return out.represented_BND.flatten(1)

    apart = [represented(1), represented(2)]
    assert not torch.equal(*apart)
    assert torch.equal(represented(1, 2), torch.cat(apart, dim=1))


@archs
def test_rows_do_not_depend_on_their_batch(build, features, arch):
    model, batch = build(arch=arch).eval(), make_batch(features, 12)
    with torch.no_grad():
        whole = model(batch)
        for row in (0, 11):
            alone = model(take_row(batch, row))
            torch.testing.assert_close(alone.logits_BK[0], whole.logits_BK[row], atol=1e-5, rtol=0)


@archs
def test_features_without_events(features, arch):
    bare = replace(features, events=(), matches=())
    config = ModelConfig(arch=arch)
    model = FoundationModel(bare, OBJECTIVES, NUM_SURFACES, config).train()
    batch = make_batch(bare, 8)
    training_loss(model(batch), batch, torch.ones(2)).backward()
    assert [n for n, p in model.named_parameters() if p.grad is None] == []


def test_din_needs_features_of_the_ad(features):
    bare = replace(features, sparse=tuple(f for f in features.sparse if f.scope != "ad"))
    with pytest.raises(ConfigError, match="features of the ad"):
        build_trunk(bare, ModelConfig(arch="din"))


@pytest.mark.parametrize("arch", ["kunlun", "din"])
def test_dropout_acts_in_training_alone(build, features, arch):
    batch = make_batch(features)
    plain, dropping = build(arch=arch).eval(), build(arch=arch, dropout=0.5).eval()
    assert torch.equal(plain(batch).logits_BK, dropping(batch).logits_BK)
    dropping.train()
    assert not torch.equal(plain(batch).logits_BK, dropping(batch).logits_BK)
    with pytest.raises(ConfigError, match=r"model\.dropout"):
        ModelConfig(dropout=1.0)


def test_a_snapshot_remembers_its_trunk(build, features, tmp_path):
    model, batch = build(arch="dcnv2").eval(), make_batch(features)
    config = ModelConfig(arch="dcnv2")
    given = {"features": features, "objectives": OBJECTIVES, "surfaces": ("x", "y", "z")}
    save_snapshot(tmp_path, model, config=config, extra={}, **given)
    with torch.no_grad():
        assert torch.equal(load_snapshot(tmp_path)(batch).logits_BK, model(batch).logits_BK)


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS.keys())
def test_a_mean_may_be_taken_before_the_projection(features, lengths):
    config, event = ModelConfig(arch="dcnv2"), features.events[0]
    early, late = MeanEntry(event, config).double(), EventEntry(event, config).double()
    late.load_state_dict(early.state_dict())
    torch.manual_seed(3)
    lengths_B, total = torch.tensor(lengths), sum(lengths)
    widths = [config.embedding_dim] * len(event.attributes)
    embedded = tuple(torch.randn(total, w).double().requires_grad_() for w in widths)
    times = {name: 900 * torch.rand(total).double() for name in ("gap_E", "age_E")}
    inputs = EventInputs(embedded=embedded, lengths_B=lengths_B, **times)
    got, want = [early(inputs).mean()], [late(inputs).mean()]
    torch.testing.assert_close(got, want)
    mine = gradients(got, [*embedded, *early.parameters()])
    leaves = [*embedded, *late.parameters()]
    # without any event the late mean is a constant
    theirs = gradients(want, leaves) if want[0].requires_grad else [0 * x.detach() for x in leaves]
    torch.testing.assert_close(list(mine), list(theirs))


def test_angles_are_made_where_attention_reads_them(build, features):
    batch = make_batch(features)
    for arch, reads in {"kunlun": True, "interformer": True, "wukong": False, "din": False}.items():
        model, seen = build(arch=arch).eval(), []
        model.dense.entry["shown"].register_forward_hook(lambda m, i, o, s=seen: s.append(o))
        model(batch)
        assert (seen[0].angle_PR is not None) == reads
