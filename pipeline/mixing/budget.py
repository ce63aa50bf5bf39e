"""How many negatives of each surface fit into the FLOPs that the reference surface would cost."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipeline.run.config import MixConfig
from pipeline.run.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """Rows that may be trained on: one entry per row (label), all buckets together."""

    surface: np.ndarray  # index into config.surfaces
    flops: np.ndarray  # forward FLOPs, float64
    positive: np.ndarray  # positive for any task of the row
    chance: np.ndarray  # uniform hash in [0, 1); a negative is kept when it lies below its rate


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Sampling rates of negatives per surface, and what the mix and the reference cost."""

    reference: int
    rates: np.ndarray
    shares: np.ndarray
    flops_reference: float
    flops_mix: float

    def keeps(self, surface: np.ndarray, positive: np.ndarray, chance: np.ndarray) -> np.ndarray:
        """Which rows are trained on."""
        return positive | (chance < self.rates[surface])


def plan_mix(config: MixConfig, surfaces: tuple[str, ...], rows: Candidates) -> Plan:
    """Rates of negatives so that all positives and the kept negatives fit the budget.

    `ConfigError` when the positives alone cost more than the budget: they are never dropped.
    """
    count = np.bincount(rows.surface, minlength=len(surfaces))
    named = config.reference_surface
    reference = surfaces.index(named) if named else int(np.argmax(count))
    per_surface = np.bincount(rows.surface, weights=rows.flops, minlength=len(surfaces))
    negatives = np.bincount(
        rows.surface, weights=rows.flops * ~rows.positive, minlength=len(surfaces)
    )
    budget = config.budget * per_surface[reference]
    spare = budget - (per_surface.sum() - negatives.sum())
    if spare <= 0 < negatives.sum():
        least = (per_surface.sum() - negatives.sum()) / max(per_surface[reference], 1.0)
        raise ConfigError(
            f"mix.budget must be above {least:.3g}, got {config.budget}: the positives alone cost "
            f"{least:.3g} times the reference surface {surfaces[reference]!r}; raise it"
        )
    shares = allocate(count, config)
    rates = fill(spare, shares, negatives)
    rates = _shrink(rates, spare, rows)
    kept = rows.positive | (rows.chance < rates[rows.surface])
    return Plan(
        reference=reference,
        rates=rates,
        shares=shares,
        flops_reference=float(per_surface[reference]),
        flops_mix=float(rows.flops[kept].sum()),
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


def _shrink(rates: np.ndarray, spare: float, rows: Candidates) -> np.ndarray:
    """Lower the rates a little where chance kept more than the expectation."""
    surface, flops, chance = (a[~rows.positive] for a in (rows.surface, rows.flops, rows.chance))
    while True:
        kept = flops[chance < rates[surface]].sum()
        if kept <= spare:
            return rates
        rates = np.where(rates < 1, rates * min(0.999, spare / kept), rates)
