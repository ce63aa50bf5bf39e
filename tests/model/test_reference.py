"""The fast model equals the slow reference: outputs and the gradients of inputs and parameters."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from reference_world import (
    BASE,
    LENGTHS,
    NUM_SURFACES,
    leaves,
    make_inputs,
    rand,
    same,
    shaken,
    tower,
    unlike_towers,
)

import kernels
from model.config import Objective
from model.embedding import EventInputs
from model.experts import SurfaceExperts
from model.foundation import DenseArch
from model.gdpa import PersonalizedFeedForward, Summarize
from model.interaction import GlobalInteraction
from model.kunlun import _pooling
from model.products import AdProducts
from model.reference import stack, towers
from model.reference.towers import EventRow
from model.sequence import EventEntry, Sequence, SequenceAttention

OBJECTIVES = (Objective(name="click"), Objective(name="conversion"))
LAYERS = {"click": 0, "view": 2, "like": 1}
SWITCHES = [
    {},
    {"compskip": False},
    {"compskip": False, "last_attention": "skip"},
    {"layers": 4},
    {"layers": 4, "last_attention": "skip"},
    {"layers": 4, "last_attention": "skip", "heads_read": "x"},
    {"heads_read": "x"},
    {"layers": 1},
    {"pffn": "none"},
    {"gdpa_context": "user", "gdpa_short_path": 0},
    {"gdpa_short_path": 0},
    {"ad_products": 0},
    {"ad_products": 5, "width": 12, "ad_product_decays": 1},
    {"ad_product_decays": 3},
    {"gdpa_activation": ("relu_square", "silu")},
    {"qk_norm": True},
    {"qk_norm": True, "gdpa_tau": "max_len", "gdpa_activation": ("identity", "gelu")},
    {"gdpa_tau": 3.0, "summary_tokens": 7},
    {"summarize_norm": False},
    {"pooling": "pma"},
    {"sumkron_rank": 0},
    {"sumkron_rank": 3},
    {"attention": "full", "compskip": False},
    {"attention": "block", "compskip": False},
    {"rote": "age"},
    {"rote": "none"},
    {"rote_phi_base": 10.0, "rote_theta_base": 100.0, "rote_tau_s": 5.0},
    {"wukong_experts": 3},
    {"wukong_experts": 2, "partition": "contiguous"},
    {"wukong_experts": 2, "partition": "interleaved", "residual_init": "random"},
    {"surface_experts": False},
    {"embedding_dim": 8},
]


def named(changes: dict) -> str:
    return "-".join(f"{k}={v}" for k, v in changes.items()).replace(" ", "") or "default"


@pytest.fixture(autouse=True)
def many_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernels.layout.BUCKET_COST", 1)
    torch.manual_seed(0)


def compare_models(features, config, lengths):
    model = shaken(DenseArch(features, OBJECTIVES, NUM_SURFACES, config)).eval()
    inputs, rows = make_inputs(features, lengths, config.embedding_dim)
    w = dict(model.named_parameters())
    got = model(inputs).logits_BK
    want = torch.stack([stack.foundation(row, w, features, config) for row in rows])
    read = {k: v for k, v in w.items() if not k.startswith("compressor.")}
    same(got, want, leaves(inputs) | read)


@pytest.mark.parametrize("changes", SWITCHES, ids=named)
def test_whole_model(changes):
    compare_models(unlike_towers(), replace(BASE, **changes), LENGTHS)


@pytest.mark.parametrize("compskip", [True, False])
@pytest.mark.parametrize("last_attention", ["read_out", "skip"])
def test_towers_that_end_early(compskip, last_attention):
    config = replace(BASE, layers=4, compskip=compskip, last_attention=last_attention)
    compare_models(unlike_towers(**LAYERS), config, LENGTHS)


@pytest.mark.parametrize("lengths", [[0, 0], [1], [7, 7, 7]], ids=["no-events", "one", "at-cap"])
def test_edges_of_a_batch(lengths):
    features = replace(unlike_towers(), events=unlike_towers().events[:1])
    compare_models(features, BASE, {"click": lengths})


def test_model_without_towers():
    features = replace(unlike_towers(), events=())
    model = shaken(DenseArch(features, OBJECTIVES, NUM_SURFACES, BASE)).eval()
    inputs, rows = make_inputs(features, {"": [0, 0]}, 4)
    w = dict(model.named_parameters())
    want = torch.stack([stack.foundation(row, w, features, BASE) for row in rows])
    same(model(inputs).logits_BK, want, leaves(inputs))


def sequence_of(lengths, width, num_pairs=0):
    """A random jagged sequence: its leaf, its rows, and the layout that holds it."""
    layout, s_EW = kernels.arrange(torch.tensor(lengths)), rand(sum(lengths), width)
    angle_ER = rand(sum(lengths), num_pairs).detach() if num_pairs else None
    angles = [None] * len(lengths) if angle_ER is None else angle_ER.split(lengths)
    packed = None if angle_ER is None else layout.pack(angle_ER)
    return s_EW, angles, Sequence(layout.pack(s_EW), packed, layout)


@pytest.mark.parametrize("keys", [2, 40], ids=["folded", "projected"])
@pytest.mark.parametrize("qk_norm", [False, True])
@pytest.mark.parametrize("activation", ["gelu", "silu", "relu", "relu_square", "identity"])
def test_gdpa(keys, qk_norm, activation):
    event = tower("e", width=8, heads=2, max_len=7)
    config = replace(BASE, summary_tokens=keys, qk_norm=qk_norm, gdpa_activation=activation)
    module, lengths = shaken(PersonalizedFeedForward(event, 2, config)), [3, 0, 7, 1]
    assert module.folds == (keys == 2 and not qk_norm)
    s_EW, _, sequence = sequence_of(lengths, 8)
    x_sum, ad = rand(4, keys, 8), rand(4, 16)
    got = sequence.layout.unpack(module(sequence, x_sum, ad).state_PW)
    w = dict(module.named_parameters())
    rows = zip(s_EW.split(lengths), x_sum, ad, strict=True)
    want = torch.cat([towers.pffn(*row, w, event, config) for row in rows])
    same(got, want, {"s": s_EW, "x_sum": x_sum, "ad": ad} | w)


@pytest.mark.parametrize("attributes", [1, 2, 3])
@pytest.mark.parametrize("decays", [1, 3])
def test_ad_products(attributes, decays):
    event, lengths = tower("e", attributes, width=8, heads=2, max_len=7), [3, 0, 7, 1]
    config = replace(BASE, ad_product_decays=decays)
    module, total = shaken(AdProducts(event, 2, config)), sum(lengths)
    embedded_EX, ad = rand(total, attributes * config.embedding_dim), rand(4, 16)
    age_E = torch.rand(total, dtype=torch.float64) * 3 * 86_400
    got = module(
        EventInputs(
            embedded=(embedded_EX,),
            lengths_B=torch.tensor(lengths),
            gap_E=age_E,
            age_E=age_E,
        ),
        ad,
    )
    w = dict(module.named_parameters())
    rows = zip(*(x.split(lengths) for x in (embedded_EX, age_E, age_E)), strict=True)
    events = [EventRow(*row) for row in rows]
    want = [stack.ad_products(e, a, w, event) for e, a in zip(events, ad, strict=True)]
    same(got, torch.stack(want), {"embedded": embedded_EX, "ad": ad} | w)


@pytest.mark.parametrize("norm", [True, False])
def test_summarize(norm):
    config = replace(BASE, summarize_norm=norm)
    module, x = shaken(Summarize(6, config)), rand(3, 6, 8)
    w = dict(module.named_parameters())
    same(module(x), torch.stack([towers.summarize(r, w, config) for r in x]), {"x": x} | w)


@pytest.mark.parametrize("width", [8, 12], ids=["width-of-model", "own-width"])
@pytest.mark.parametrize("changes", [{"sumkron_rank": k} for k in (0, 1, 3)] + [{"pooling": "pma"}])
def test_pooling(changes, width):
    event, config = tower("e", width=width, heads=2, tokens=3, max_len=9), replace(BASE, **changes)
    module, lengths = shaken(_pooling(event, config)), [9, 0, 1, 4]
    s_EW, _, sequence = sequence_of(lengths, width)
    w = dict(module.named_parameters())
    want = torch.stack([towers.pool(s, w, event, config) for s in s_EW.split(lengths)])
    same(module(sequence), want, {"s": s_EW} | w)


@pytest.mark.parametrize("num_pairs", [0, 2], ids=["no-rote", "rote"])
@pytest.mark.parametrize(
    "changes",
    [
        {"attention": "full"},
        {"attention": "window"},
        *({"attention": "block", "attention_block": c} for c in (1, 4, 9, 64)),
    ],
    ids=named,
)
def test_self_attention(changes, num_pairs):
    event = tower("e", width=8, heads=2, window=3, max_len=9)
    config, lengths = replace(BASE, **changes), [9, 0, 1, 8, 5]
    module = shaken(SequenceAttention(event, config))
    s_EW, angles, sequence = sequence_of(lengths, 8, num_pairs)
    got = sequence.layout.unpack(module(sequence).state_PW)
    w = dict(module.named_parameters())
    rows = zip(s_EW.split(lengths), angles, strict=True)
    want = torch.cat([towers.self_attention(*row, w, event, config) for row in rows])
    same(got, want, {"s": s_EW} | w)


@pytest.mark.parametrize("changes", [{"rote": "age"}, {"rote_phi_base": 3.0}, {}], ids=named)
def test_rotary_time(changes):
    config, lengths = replace(BASE, **changes), LENGTHS["click"]
    features = replace(unlike_towers(), events=unlike_towers().events[:1])
    inputs, rows = make_inputs(features, {"click": lengths}, 4)
    got = EventEntry(features.events[0], config).double()(inputs.events["click"])
    want = [towers.rote(row.events["click"], 2, config) for row in rows]
    torch.testing.assert_close(got.layout.unpack(got.angle_PR), torch.cat(want))


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("partition", ["alternate", "contiguous", "interleaved"])
@pytest.mark.parametrize("experts", [1, 2, 5, 9])
def test_global_interaction(experts, partition, layer):
    config = replace(BASE, wukong_experts=experts, partition=partition)
    module, x, h = shaken(GlobalInteraction(5, 4, layer, config)), rand(2, 5, 8), rand(2, 4, 8)
    w = dict(module.named_parameters())
    rows = zip(x, h, strict=True)
    want = torch.stack([stack.global_interaction(*r, layer, w, config) for r in rows])
    same(module(x, h), want, {"x": x, "h": h} | w)


def test_surface_experts():
    module, x = shaken(SurfaceExperts(3, 6, 2)), rand(5, 6)
    w, surfaces = dict(module.named_parameters()), [2, 0, 1, 1, 0]
    rows = zip(x, surfaces, strict=True)
    want = torch.stack([stack.surface_experts(*row, w, 2) for row in rows])
    same(module(x, torch.tensor(surfaces)), want, {"x": x} | w)
