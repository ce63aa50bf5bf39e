"""A small model in float64 with three unlike towers, its inputs row by row, and a comparison."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from model.config import (
    DenseFeature,
    EmbeddingTable,
    EventAttribute,
    EventType,
    FeatureSet,
    ModelConfig,
    SparseFeature,
)
from model.embedding import DenseInputs, EventInputs
from model.reference.stack import Row
from model.reference.towers import EventRow

NUM_SURFACES = 3
LENGTHS = {"click": [0, 1, 7, 4, 0], "view": [5, 0, 1, 3, 0], "like": [2, 0, 5, 1, 0]}
BASE = ModelConfig(
    embedding_dim=4,
    width=8,
    layers=3,
    summary_tokens=3,
    seeds=5,
    fm_rank=3,
    mlp_width=10,
    head_width=5,
    adapter_rank=2,
    gdpa_short_path=2,
    ad_products=3,
    attention_block=4,
    representation_dim=4,
)


def tower(name: str, attributes: int = 2, **size: int) -> EventType:
    columns = tuple(EventAttribute(column=f"c{i}", table="id") for i in range(attributes))
    return EventType(name=name, source="impressions", attributes=columns, **size)


def unlike_towers(**layers: int) -> FeatureSet:
    """Three towers, each of its own size; `layers` by tower name."""
    towers = (
        tower("click", width=8, heads=2, tokens=3, window=2, max_len=7),
        tower("view", 3, width=16, heads=4, tokens=2, window=1, max_len=5),
        tower("like", width=4, heads=2, tokens=1, window=30, max_len=5),
    )
    return FeatureSet(
        tables=(EmbeddingTable(name="id", buckets=10),),
        sparse=tuple(
            SparseFeature(name=f"f{i}", table="id", scope=scope)
            for i, scope in enumerate(("user", "ad", "request", "ad"))
        ),
        dense=(DenseFeature(name="d0", scope="user"), DenseFeature(name="d1", scope="ad")),
        events=tuple(replace(e, layers=layers.get(e.name, 0)) for e in towers),
    )


def rand(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def shaken(module: nn.Module) -> nn.Module:
    """In float64, with every parameter moved, so that no zero or identity hides a mistake."""
    module = module.double()
    with torch.no_grad():
        for p in module.parameters():
            p.add_(torch.randn_like(p) * 0.3)
    return module


def make_inputs(
    features: FeatureSet, lengths: dict[str, list[int]], width: int
) -> tuple[DenseInputs, list[Row]]:
    """The same random rows as a batch and one by one."""
    num_rows = len(next(iter(lengths.values())))
    embedded_BFD, dense_BC = rand(num_rows, len(features.sparse), width), rand(num_rows, 2)
    surface_B = torch.arange(num_rows) % NUM_SURFACES
    events, by_row = {}, [{} for _ in range(num_rows)]
    for event in features.events:
        each = lengths[event.name]
        embedded_EX = rand(sum(each), len(event.attributes) * width)
        gap_E, age_E = (torch.rand(sum(each), dtype=torch.float64) * 4e3 for _ in range(2))
        events[event.name] = EventInputs(
            embedded=(embedded_EX,),
            lengths_B=torch.tensor(each, dtype=torch.int64),
            gap_E=gap_E,
            age_E=age_E,
        )
        parts = zip(*(x.split(each) for x in (embedded_EX, gap_E, age_E)), strict=True)
        for row, part in zip(by_row, parts, strict=True):
            row[event.name] = EventRow(*part)
    inputs = DenseInputs(
        embedded_BFD=embedded_BFD, dense_BC=dense_BC, events=events, surface_B=surface_B
    )
    return inputs, [
        Row(embedded_BFD[i], dense_BC[i], by_row[i], int(surface_B[i])) for i in range(num_rows)
    ]


def leaves(inputs: DenseInputs) -> dict[str, Tensor]:
    """The inputs that have gradients."""
    found = {"embedded": inputs.embedded_BFD, "dense": inputs.dense_BC}
    return found | {f"events.{n}": e.embedded[0] for n, e in inputs.events.items()}


def same(got: Tensor, want: Tensor, inputs: dict[str, Tensor], tolerance: float = 1e-10) -> None:
    """Equal values, and equal gradients of a random projection, by relative norm."""
    assert got.shape == want.shape
    seed = torch.randn_like(want)
    pairs = {"output": (got, want)}
    grads = [
        torch.autograd.grad((x * seed).sum(), list(inputs.values()), allow_unused=True)
        for x in (got, want)
    ]
    for name, x, g, w in zip(inputs, inputs.values(), *grads, strict=True):
        assert (g is None) <= (w is None or not w.any()), f"{name} has no gradient"
        pairs[name] = tuple(torch.zeros_like(x) if y is None else y for y in (g, w))
    for name, (g, w) in pairs.items():
        error = (g - w).norm() / w.norm().clamp_min(1e-6)
        assert error <= tolerance, f"{name}: relative error {error:.1e}"
