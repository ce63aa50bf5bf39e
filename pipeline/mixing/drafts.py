"""Drafts: the labels that may be trained on, with their cost, until the plan says which stay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pipeline.mixing.budget import Candidates, row_flops
from pipeline.mixing.hashing import uniform
from pipeline.mixing.selections import (
    Columns,
    Labels,
    Mask,
    click_group,
    known_labels,
    positive_labels,
)
from pipeline.run.config import RunConfig
from pipeline.run.window import Window

_SALT: Final = 1_000  # keeps mix.seed apart from the seeds of buckets and table rows
_DELAYED_SALT: Final = 2_000
Counts = dict[str, NDArray[np.int64]]


@dataclass(frozen=True, kw_only=True)
class Draft:
    """Candidates: place in their bucket, window, and what a plan asks of them.

    `num_known` counts the span's labels with the delayed negatives that are not considered,
    `bought` the positives of every conversion objective per surface.
    """

    place: NDArray[np.int32]
    group: NDArray[np.int8]
    costs: Candidates
    num_known: int
    bought: Counts

    def __len__(self) -> int:
        return len(self.place)

    def take(self, chosen: Mask) -> Draft:
        """The candidates of a mask."""
        costs = {f.name: getattr(self.costs, f.name)[chosen] for f in fields(Candidates)}
        return replace(
            self, place=self.place[chosen], group=self.group[chosen], costs=Candidates(**costs)
        )


def draft(config: RunConfig, window: Window, rows: Columns, begin: int = 0) -> Draft:
    """The candidates among consecutive impressions of a bucket, the first of them at `begin`."""
    known = known_labels(config.objectives, rows, window.train_begin, window.cut)
    positive = positive_labels(config.objectives, rows, known)
    kept = _considered(config, rows, known, positive)
    labels, positive = known.take(kept), positive[kept]
    costs = Candidates(
        surface=rows["surface"][labels.place],
        flops=row_flops(config, rows)[labels.place],
        positive=positive,
        chance=uniform(rows["impression_id"][labels.place], _SALT + config.mix.seed),
    )
    return Draft(
        place=(labels.place + begin).astype(np.int32),
        group=labels.group,
        costs=costs,
        num_known=len(known),
        bought=_bought(config, rows, labels, positive),
    )


def joined(drafts: Sequence[Draft]) -> Draft:
    """Drafts one after the other; at least one."""
    costs = {
        f.name: np.concatenate([getattr(d.costs, f.name) for d in drafts])
        for f in fields(Candidates)
    }
    return Draft(
        place=np.concatenate([d.place for d in drafts]),
        group=np.concatenate([d.group for d in drafts]),
        costs=Candidates(**costs),
        num_known=sum(d.num_known for d in drafts),
        bought={n: np.sum([d.bought[n] for d in drafts], axis=0) for n in drafts[0].bought},
    )


def _considered(config: RunConfig, base: Columns, known: Labels, positive: Mask) -> Mask:
    """All labels but the share of delayed negatives that `mix.delayed_rate` leaves out."""
    doubtful = np.flatnonzero((known.group != click_group(config.objectives)) & ~positive)
    chance = uniform(base["impression_id"][known.place[doubtful]], _DELAYED_SALT + config.mix.seed)
    kept = np.ones(len(known), dtype=bool)
    kept[doubtful] = chance < config.mix.delayed_rate
    return kept


def _bought(config: RunConfig, base: Columns, labels: Labels, positive: Mask) -> Counts:
    place = labels.place[positive & (labels.group != click_group(config.objectives))]
    counts: Counts = {}
    for objective in config.objectives:
        if objective.name != "click":
            own = place[base[f"y_{objective.name}"][place] == 1]
            counts[objective.name] = np.bincount(
                base["surface"][own], minlength=len(config.surfaces)
            )
    return counts
