"""How many rows of each surface fit into the FLOPs that the reference surface would cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from model.flops import flops_per_row
from pipeline.run.config import MixConfig, RunConfig
from pipeline.run.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """Rows that may be trained on: one entry per row (label), all buckets together."""

    surface: np.ndarray  # index into config.surfaces
    flops: np.ndarray  # forward FLOPs, float64
    certain: np.ndarray  # kept whatever the rates: positive for a rare objective
    chance: np.ndarray  # uniform hash in [0, 1); a row is kept when it lies below its rate


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Sampling rates of the rows that are not certain, and what the mix and the reference cost.

    Arrays have an entry per surface; `candidates` and `certain` count rows.
    """

    reference: int
    rates: np.ndarray
    shares: np.ndarray
    candidates: np.ndarray
    certain: np.ndarray
    flops: np.ndarray  # of the rows that are kept
    flops_reference: float

    @property
    def flops_mix(self) -> float:
        """FLOPs of all rows that are kept."""
        return float(self.flops.sum())

    def keeps(self, surface: np.ndarray, certain: np.ndarray, chance: np.ndarray) -> np.ndarray:
        """Which rows are trained on, as a mask."""
        return certain | (chance < self.rates[surface])


def row_flops(
    config: RunConfig, rows: pl.DataFrame | Mapping[str, NDArray[Any]]
) -> NDArray[np.float64]:
    """Forward FLOPs of each row, from the events that it would read.

    They are a sum over event types, so that each type's part is looked up by its number of events.
    """
    none = dict.fromkeys((e.name for e in config.features.events), 0)
    fixed = _flops(config, none)
    found = np.full(len(rows["surface"]), fixed)
    for event in config.features.events:
        more = _flops(config, none | {event.name: np.arange(event.max_len + 1)}) - fixed
        start, end = (np.asarray(rows[f"{p}_{event.name}"]) for p in ("start", "end"))
        found += more[np.clip(end - start, 0, event.max_len)]
    return found


def _flops(config: RunConfig, lengths: Mapping[str, Any]) -> NDArray[np.float64]:
    objectives, surfaces = len(config.objectives), len(config.surfaces)
    each = flops_per_row(config.model, config.features, objectives, lengths, surfaces)
    return np.asarray(each, dtype=np.float64)


def plan_mix(config: MixConfig, surfaces: tuple[str, ...], *rows: Candidates) -> Plan:
    """Rates so that the certain rows and what is kept of the others fit the budget.

    The candidates may come in parts. `ConfigError` when the certain rows alone cost more than the
    budget: they are never dropped.
    """
    num = len(surfaces)
    candidates = np.sum([np.bincount(r.surface, minlength=num) for r in rows], axis=0)
    certain = np.sum([np.bincount(r.surface[r.certain], minlength=num) for r in rows], axis=0)
    fixed = np.sum([_cost(r, r.certain, num) for r in rows], axis=0)
    others = np.sum([_cost(r, ~r.certain, num) for r in rows], axis=0)
    named = config.reference_surface
    reference = surfaces.index(named) if named else int(np.argmax(candidates))
    flops_reference = fixed[reference] + others[reference]
    spare = config.budget * flops_reference - fixed.sum()
    if spare <= 0 < others.sum():
        least = fixed.sum() / max(flops_reference, 1.0)
        raise ConfigError(
            f"mix.budget must be above {least:.3g}, got {config.budget}: positives of rare "
            f"objectives alone cost {least:.3g} times the reference surface "
            f"{surfaces[reference]!r}; raise it, or lower mix.rare_below"
        )
    shares = allocate(candidates, config)
    rates, kept = _shrink(fill(spare, shares, others), spare, rows)
    return Plan(
        reference=reference,
        rates=rates,
        shares=shares,
        candidates=candidates,
        certain=certain,
        flops=fixed + kept,
        flops_reference=float(flops_reference),
    )


def allocate(count: np.ndarray, config: MixConfig) -> np.ndarray:
    """Shares q_s proportional to n_s^alpha, clipped to [floor, cap] and adding up to 1."""
    present = count > 0
    if config.floor * present.sum() > 1 or config.cap * present.sum() < 1:
        raise ConfigError(
            f"mix.floor and mix.cap must leave room for {present.sum()} surfaces, got "
            f"{config.floor} and {config.cap}; use 0.0 and 1.0 for no limits"
        )
    wished = np.where(present, count.astype(np.float64) ** config.alpha, 0.0)
    low, high = 0.0, 1.0 / wished[present].min()
    for _ in range(200):  # bisection on the scale: the clipped sum grows with it
        scale = (low + high) / 2
        total = np.clip(scale * wished[present], config.floor, config.cap).sum()
        low, high = (scale, high) if total < 1 else (low, scale)
    shares = np.where(present, np.clip(high * wished, config.floor, config.cap), 0.0)
    return shares / shares.sum()


def fill(spare: float, shares: np.ndarray, cost: np.ndarray) -> np.ndarray:
    """Rates min(1, share of `spare` / cost); what a full surface leaves goes to the others."""
    rates = np.ones(len(shares))
    limited = cost > 0
    while limited.any():
        part = shares * limited
        rest = spare - cost[~limited].sum()
        wished = rest * part[limited] / max(part.sum(), 1e-300) / cost[limited]
        full = np.zeros(len(shares), dtype=bool)
        full[limited] = wished >= 1
        if not full.any():
            rates[limited] = np.maximum(wished, 0.0)
            break
        limited &= ~full
    return rates


def _cost(rows: Candidates, chosen: np.ndarray, num_surfaces: int) -> np.ndarray:
    return np.bincount(rows.surface, weights=rows.flops * chosen, minlength=num_surfaces)


def _shrink(
    rates: np.ndarray, spare: float, rows: Sequence[Candidates]
) -> tuple[np.ndarray, np.ndarray]:
    """Lower the rates a little where chance kept more than the expectation; FLOPs of the kept."""
    while True:
        parts = ((r, ~r.certain & (r.chance < rates[r.surface])) for r in rows)
        kept = np.sum([_cost(r, chosen, len(rates)) for r, chosen in parts], axis=0)
        if kept.sum() <= spare:
            return rates, kept
        rates = np.where(rates < 1, rates * min(0.999, spare / kept.sum()), rates)
