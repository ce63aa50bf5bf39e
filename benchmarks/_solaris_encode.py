"""Many ads of a user: histories encoded once per user beside the pair-by-pair forward pass.

Both get the same candidates of the same model and must answer alike. Contestants take turns, so
that a busy minute hits all alike; figures are medians of the turns' ratios. Seconds of processor,
one thread. Suffixes: B rows, U users.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from benchmarks._measure import BenchmarkError
from model.batch import Batch, EventBatch, Sharing
from model.config import FeatureSet, ModelConfig
from model.foundation import FoundationModel, ModelOutput
from model.sequence import repeated
from model.shape import reference_shape

ADS_PER_USER, USERS = 50, 40
TURNS, QUICK_TURNS = 15, 7
TOLERANCE = 1e-4
CONTEXTS: dict[str, dict[str, Any]] = {
    "user": {"gdpa_context": "user", "gdpa_short_path": 0},
    "all": {"gdpa_context": "all"},
}


def encoding(quick: bool, size: str = "small") -> dict[str, float]:
    """Speed of sharing over pair by pair, and pairs a second, by `model.gdpa_context`.

    At size base the interaction, which every pair needs for itself, outweighs the histories.
    """
    torch.set_num_threads(1)
    figures: dict[str, float] = {}
    count = QUICK_TURNS if quick else TURNS
    for context, changes in CONTEXTS.items():
        shape, config = reference_shape(size)
        model = _model(replace(config, **changes), shape.features)
        shared, sharing = candidates(shape.features)
        alone = spread(shared, sharing)
        with torch.inference_mode():
            _agree(model.candidates(shared, sharing), model(alone))
        turns = list(
            _turns(partial(model, alone), partial(model.candidates, shared, sharing), count)
        )
        name = "user_once_speedup" if context == "user" else f"sharing_speedup_{context}"
        figures[name] = statistics.median(a / b for a, b in turns)
        figures[f"pairs_per_s_{context}"] = alone.num_rows / statistics.median(b for _, b in turns)
    return figures


def candidates(
    features: FeatureSet, users: int = USERS, ads: int = ADS_PER_USER
) -> tuple[Batch, Sharing]:
    """Random users with full histories and their ads, all of a user's rows side by side."""
    draw = torch.Generator().manual_seed(0)
    buckets = {t.name: t.buckets for t in features.tables}
    owner_B = torch.arange(users).repeat_interleave(ads)
    sharing = Sharing(owner_B=owner_B, first_U=torch.arange(users) * ads)
    columns = []
    for feature in features.sparse:
        of_ad = feature.scope == "ad"
        ids = torch.randint(
            0, buckets[feature.table], (users * ads if of_ad else users,), generator=draw
        )
        columns.append(ids if of_ad else ids[owner_B])
    rows = users * ads
    shape = (rows, 2)
    batch = Batch(
        ids_BF=torch.stack(columns, dim=1),
        dense_BC=torch.randn(rows, len(features.dense_columns), generator=draw),
        events={
            e.name: _events(e.max_len, [buckets[a.table] for a in e.attributes], users, draw)
            for e in features.events
        },
        surface_B=torch.zeros(rows, dtype=torch.int64),
        labels_BK=torch.zeros(shape),
        mask_BK=torch.zeros(shape),
        weight_BK=torch.ones(shape),
        row_B=torch.arange(rows),
    )
    return batch, sharing


def spread(batch: Batch, sharing: Sharing) -> Batch:
    """The same rows, each with a copy of its user's history."""
    events = {}
    for name, e in batch.events.items():
        place_E, lengths_B = repeated(e.lengths_B, sharing.owner_B)
        events[name] = EventBatch(
            ids_EA=e.ids_EA[place_E],
            lengths_B=lengths_B,
            gap_E=e.gap_E[place_E],
            age_E=e.age_E[place_E],
        )
    return replace(batch, events=events)


def _events(length: int, sizes: list[int], users: int, draw: torch.Generator) -> EventBatch:
    total = length * users
    ids = [torch.randint(0, size, (total,), generator=draw) for size in sizes]
    return EventBatch(
        ids_EA=torch.stack(ids, dim=1),
        lengths_B=torch.full((users,), length),
        gap_E=torch.rand(total, generator=draw) * 3_600,
        age_E=torch.rand(total, generator=draw) * 86_400,
    )


def _model(config: ModelConfig, features: FeatureSet) -> FoundationModel:
    shape, _ = reference_shape("small")
    torch.manual_seed(0)
    return FoundationModel(features, shape.objectives, shape.num_surfaces, config).eval()


def _agree(found: ModelOutput, expected: ModelOutput) -> None:
    distance = float((found.representation_Bd - expected.representation_Bd).abs().max())
    if not distance <= TOLERANCE:
        raise BenchmarkError(f"shared histories give other vectors, by {distance:.3g}")


def _turns(
    above: Callable[[], ModelOutput], below: Callable[[], ModelOutput], turns: int
) -> Iterator[tuple[float, float]]:
    for turn in range(turns + 1):
        seconds = []
        for work in (above, below):
            began = time.process_time()
            with torch.inference_mode():
                work()
            seconds.append(time.process_time() - began)
        if turn:  # the first one warms caches up
            yield seconds[0], seconds[1]
