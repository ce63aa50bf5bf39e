"""Drafts: the labels that may be trained on, with their cost, until the plan says which stay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Final

import numpy as np
from numpy.typing import NDArray

from model.config import Objective
from pipeline.mixing.budget import Candidates, row_flops
from pipeline.mixing.hashing import uniform
from pipeline.mixing.selections import (
    Columns,
    Labels,
    Mask,
    click_group,
    known_labels,
    labels_at,
    positive_labels,
)
from pipeline.run.config import RunConfig
from pipeline.run.window import Window

_SALT: Final = 1_000  # keeps mix.seed apart from the seeds of buckets and table rows
_DELAYED_SALT: Final = 2_000
Counts = dict[str, NDArray[np.int64]]


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A bucket's candidates: place in the bucket, window, and what a plan asks of them.

    `num_known` counts the span's labels with the delayed negatives that are not considered,
    `bought` the positives of every conversion objective per surface.
    """

    place: NDArray[np.int32]
    group: NDArray[np.int8]
    costs: Candidates
    num_known: int
    bought: Counts

    def labels(
        self, objectives: Sequence[Objective], base: Columns, kept: NDArray[np.int64]
    ) -> Labels:
        """Some of the candidates as labels."""
        return labels_at(objectives, base, self.place[kept], self.group[kept])


def draft(config: RunConfig, window: Window, base: Columns) -> Draft:
    """The candidates among a bucket's impressions."""
    known = known_labels(config.objectives, base, window.train_begin, window.cut)
    positive = positive_labels(config.objectives, base, known)
    kept = _considered(config, base, known, positive)
    labels, positive = known.take(kept), positive[kept]
    spans = [f"{p}_{e.name}" for e in config.features.events for p in ("start", "end")]
    rows = {n: base[n][labels.place] for n in ("surface", "impression_id", *spans)}
    costs = Candidates(
        surface=rows["surface"],
        flops=row_flops(config, rows),
        positive=positive,
        chance=uniform(rows["impression_id"], _SALT + config.mix.seed),
    )
    return Draft(
        place=labels.place.astype(np.int32),
        group=labels.group,
        costs=costs,
        num_known=len(known),
        bought=_bought(config, base, labels, positive),
    )


def joined(drafts: Sequence[Draft]) -> Candidates:
    """The candidates of all buckets together, in the order of the drafts."""
    names = [f.name for f in fields(Candidates)]
    return Candidates(**{n: np.concatenate([getattr(d.costs, n) for d in drafts]) for n in names})


def _considered(config: RunConfig, base: Columns, known: Labels, positive: Mask) -> Mask:
    """All labels but the share of delayed negatives that `mix.delayed_rate` leaves out."""
    doubtful = np.flatnonzero((known.group != click_group(config.objectives)) & ~positive)
    chance = uniform(base["impression_id"][known.place[doubtful]], _DELAYED_SALT + config.mix.seed)
    kept = np.ones(len(known), dtype=bool)
    kept[doubtful] = chance < config.mix.delayed_rate
    return kept


def _bought(config: RunConfig, base: Columns, labels: Labels, positive: Mask) -> Counts:
    place = labels.place[positive & (labels.group != click_group(config.objectives))]
    counts = {}
    for objective in config.objectives:
        if objective.name != "click":
            own = place[base[f"y_{objective.name}"][place] == 1]
            counts[objective.name] = np.bincount(
                base["surface"][own], minlength=len(config.surfaces)
            )
    return counts
