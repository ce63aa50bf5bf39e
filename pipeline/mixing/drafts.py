"""Drafts: the labels that may be trained on, with their cost, until the plan says which stay."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from model.config import Objective
from pipeline.mixing.budget import Candidates, Plan, row_flops
from pipeline.mixing.hashing import uniform
from pipeline.mixing.selections import (
    Columns,
    Labels,
    Mask,
    click_group,
    known_labels,
    positive_labels,
    windows,
)
from pipeline.run.config import RunConfig
from pipeline.run.window import Window

_SALT: Final = 1_000  # keeps mix.seed apart from the seeds of buckets and table rows
_DELAYED_SALT: Final = 2_000
_ARRAYS: Final = ("place", "group", "positive")
Counts = dict[str, NDArray[np.int64]]
Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Draft:
    """Candidates: place in their bucket, window, labels, and what a plan asks of them.

    `positive` has a bit for each objective. By window, `known` counts the span's labels with the
    delayed negatives that are not considered, and `rare` says whether an objective of the window
    is rare; until it is `settled` none is, and no candidate is certain.
    """

    place: NDArray[np.int32]
    group: NDArray[np.int8]
    positive: NDArray[np.uint8]
    costs: Candidates
    known: NDArray[np.int64]
    rare: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.place)

    def settled(self, objectives: Sequence[Objective], rare: Collection[str]) -> Draft:
        """The draft in which positives of the rare objectives are certain to be kept."""
        bits = sum(1 << bit for bit, o in enumerate(objectives) if o.name in rare)
        certain = (self.positive & np.uint8(bits)) != 0
        by_window = np.array([any(n in rare for n in names) for names in windows(objectives)])
        return replace(self, costs=replace(self.costs, certain=certain), rare=by_window)

    def rates(self, plan: Plan, delayed_rate: float, prompt: int) -> dict[str, Floats]:
        """ "rate": a candidate's chance of being kept; "odds": its negatives' over its positives'.

        `prompt` is the window without delay, all of whose negatives are considered.
        """
        considered = np.where(self.group != prompt, delayed_rate, 1.0)
        sampled = plan.rates[self.costs.surface]
        rate = np.where(self.costs.certain, 1.0, sampled)
        rate *= np.where(self.positive == 0, considered, 1.0)
        return {"rate": rate, "odds": np.where(self.rare[self.group], sampled, 1.0) * considered}

    def take(self, chosen: Mask) -> Draft:
        """The candidates of a mask."""
        arrays = {n: getattr(self, n)[chosen] for n in _ARRAYS}
        costs = {f.name: getattr(self.costs, f.name)[chosen] for f in fields(Candidates)}
        return replace(self, **arrays, costs=Candidates(**costs))


def draft(config: RunConfig, window: Window, rows: Columns, begin: int = 0) -> Draft:
    """The candidates among consecutive impressions of a bucket, the first of them at `begin`."""
    known = known_labels(config.objectives, rows, window.train_begin, window.cut)
    positive = positive_labels(config.objectives, rows, known)
    kept = _considered(config, rows, known, positive != 0)
    labels, positive = known.take(kept), positive[kept]
    num_windows = len(windows(config.objectives))
    costs = Candidates(
        surface=rows["surface"][labels.place],
        flops=row_flops(config, rows)[labels.place],
        certain=np.zeros(len(labels), dtype=bool),
        chance=uniform(rows["impression_id"][labels.place], _SALT + config.mix.seed),
    )
    return Draft(
        place=(labels.place + begin).astype(np.int32),
        group=labels.group,
        positive=positive,
        costs=costs,
        known=np.bincount(known.group, minlength=num_windows),
        rare=np.zeros(num_windows, dtype=bool),
    )


def joined(drafts: Sequence[Draft]) -> Draft:
    """Drafts one after the other; at least one."""
    costs = {
        f.name: np.concatenate([getattr(d.costs, f.name) for d in drafts])
        for f in fields(Candidates)
    }
    arrays = {n: np.concatenate([getattr(d, n) for d in drafts]) for n in _ARRAYS}
    known = np.sum([d.known for d in drafts], axis=0)
    return replace(drafts[0], **arrays, costs=Candidates(**costs), known=known)


def rare_among(config: RunConfig, drafts: Sequence[Draft]) -> frozenset[str]:
    """The objectives that are positive in fewer than `mix.rare_below` of all their labels."""
    known = np.sum([d.known for d in drafts], axis=0)
    found = positives(config, drafts)
    return frozenset(
        name
        for names, labels in zip(windows(config.objectives), known, strict=True)
        for name in names
        if found[name].sum() < config.mix.rare_below * labels
    )


def positives(config: RunConfig, drafts: Sequence[Draft]) -> Counts:
    """Positive candidates of every objective, per surface."""
    num = len(config.surfaces)
    return {
        o.name: np.sum(
            [
                np.bincount(d.costs.surface[(d.positive >> bit) & 1 == 1], minlength=num)
                for d in drafts
            ],
            axis=0,
        )
        for bit, o in enumerate(config.objectives)
    }


def _considered(config: RunConfig, base: Columns, known: Labels, positive: Mask) -> Mask:
    """All labels but the share of delayed negatives that `mix.delayed_rate` leaves out."""
    doubtful = np.flatnonzero((known.group != click_group(config.objectives)) & ~positive)
    chance = uniform(base["impression_id"][known.place[doubtful]], _DELAYED_SALT + config.mix.seed)
    kept = np.ones(len(known), dtype=bool)
    kept[doubtful] = chance < config.mix.delayed_rate
    return kept
