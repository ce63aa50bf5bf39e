"""Histories encoded once per user: the same numbers as pair by pair."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from model_world import make_batch

from model.batch import Batch, EventBatch, Sharing

USERS, ADS = 5, 7
KINDS = [
    {"gdpa_context": "user", "gdpa_short_path": 0},
    {"gdpa_context": "user", "gdpa_short_path": 0, "layers": 3, "compskip": False},
    {"gdpa_context": "user", "gdpa_short_path": 0, "pffn": "none", "pooling": "pma"},
    {"gdpa_context": "user", "gdpa_short_path": 0, "arch": "din"},
    {"gdpa_context": "all"},
    {"gdpa_context": "all", "rote": "none", "qk_norm": True},
    {"arch": "dcnv2"},
    {"arch": "interformer"},
]


def candidates(features, length=None) -> tuple[Batch, Sharing]:
    """Rows of a few users with several ads each; the second user has no history."""
    users = make_batch(features, USERS, length=length)
    if length is None:
        users = replace(users, events={n: without(e, 1) for n, e in users.events.items()})
    rows = make_batch(features, USERS * ADS, seed=1)
    owner = torch.arange(USERS * ADS) % USERS
    common = [i for i, f in enumerate(features.sparse) if f.scope != "ad"]
    rows.ids_BF[:, common] = users.ids_BF[owner][:, common]
    sharing = Sharing(owner_B=owner, first_U=torch.arange(USERS))
    return replace(rows, events=users.events), sharing


def without(events: EventBatch, row: int) -> EventBatch:
    begin = int(events.lengths_B[:row].sum())
    kept = torch.ones(len(events.gap_E), dtype=torch.bool)
    kept[begin : begin + int(events.lengths_B[row])] = False
    lengths = events.lengths_B.clone()
    lengths[row] = 0
    return EventBatch(
        ids_EA=events.ids_EA[kept],
        lengths_B=lengths,
        gap_E=events.gap_E[kept],
        age_E=events.age_E[kept],
    )


def pair_by_pair(batch: Batch, sharing: Sharing) -> Batch:
    """The same rows, each with a copy of its user's history."""
    events = {}
    for name, e in batch.events.items():
        parts = [torch.arange(len(e.gap_E))[p] for p in spans(e.lengths_B)]
        place = torch.cat([parts[u] for u in sharing.owner_B.tolist()])
        events[name] = EventBatch(
            ids_EA=e.ids_EA[place],
            lengths_B=e.lengths_B[sharing.owner_B],
            gap_E=e.gap_E[place],
            age_E=e.age_E[place],
        )
    return replace(batch, events=events)


def spans(lengths: torch.Tensor) -> list[slice]:
    ends = lengths.cumsum(0).tolist()
    return [slice(end - n, end) for end, n in zip(ends, lengths.tolist(), strict=True)]


@pytest.mark.parametrize("changes", KINDS, ids=lambda c: "-".join(str(v) for v in c.values()))
@pytest.mark.parametrize("length", [None, 0], ids=["some without events", "none has events"])
def test_shared_histories_change_nothing(build, features, changes, length):
    model = build(**changes).eval()
    batch, sharing = candidates(features, length)
    with torch.inference_mode():
        shared = model.candidates(batch, sharing)
        alone = model(pair_by_pair(batch, sharing))
    assert torch.allclose(shared.logits_BK, alone.logits_BK, atol=1e-5)
    assert torch.allclose(shared.representation_Bd, alone.representation_Bd, atol=1e-5)


def test_a_tower_runs_once_per_user_where_it_does_not_see_the_ad(build, features):
    rows = {}
    for context, short in (("user", 0), ("all", 4)):
        model = build(gdpa_context=context, gdpa_short_path=short).eval()
        seen = rows.setdefault(context, [])
        for pool in model.dense.trunk.layers[0].pool.values():
            pool.register_forward_hook(lambda _, given, out, seen=seen: seen.append(len(out)))
        with torch.inference_mode():
            model.candidates(*candidates(features))
    assert set(rows["user"]) == {USERS}
    assert set(rows["all"]) == {USERS * ADS}
