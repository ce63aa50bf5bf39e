"""Plots of the planted world's marginals: `python -m pipeline.mixing.synthetic_plots [--to FILE]`.

They are drawn from one played day of the `small` world, before anything is written, and from the
interests of the days around it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pipeline.mixing.synthetic_day import Delivery, deliver
from pipeline.mixing.synthetic_world import DRIFT, activity_of, users_of
from pipeline.run.planted import PLANTED_SURFACES, PlantedConfig
from pipeline.run.presets import planted
from pipeline.run.window import DAY_US, HOUR_US, day_begin_us

DAY = "2026-11-20"
TO = Path("docs/planted-marginals.png")
STYLE: Any = {
    "font.size": 8,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
DAYS_OF_HISTORY = 30


def main(argv: list[str]) -> int:
    """Draw all panels into one PNG file."""
    parser = argparse.ArgumentParser(prog="python -m pipeline.mixing.synthetic_plots")
    parser.add_argument("--to", type=Path, default=TO, help=f"the PNG file (default {TO})")
    path: Path = parser.parse_args(argv).to
    path.parent.mkdir(parents=True, exist_ok=True)
    draw(PlantedConfig(), day_begin_us(DAY) // DAY_US).savefig(path, dpi=90)
    print(path)
    return 0


def draw(world: PlantedConfig, number: int) -> Figure:
    """One figure with a panel for each marginal of a day (days since 1970)."""
    day = deliver(world, number, len(PLANTED_SURFACES))
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(11, 7.6), layout="constrained")
        panels = figure.subplots(3, 3).ravel()
        _load(panels[0], day, number)
        _histories(panels[1], world, number)
        _popularity(panels[2], day)
        _click_odds(panels[3], day)
        _by_position(panels[4], day)
        _by_exposure(panels[5], day)
        _delays(panels[6], day)
        _drift(panels[7], world, number)
        _recurrence(panels[8], day)
    return figure


def _load(axes: Axes, day: Delivery, number: int) -> None:
    hour = (day.requests.ts_R - number * DAY_US) / HOUR_US
    for index, name in enumerate(PLANTED_SURFACES):
        counts, edges = np.histogram(hour[day.requests.surface_R == index], np.arange(25))
        axes.stairs(counts, edges, label=name)
    axes.set(title="Load by the clock", xlabel="hour (UTC)", ylabel="requests")
    axes.legend(frameon=False, loc="upper left")


def _histories(axes: Axes, world: PlantedConfig, number: int) -> None:
    base = planted("base").source.planted or world
    for name, size in (("small", world), ("base", base)):
        mean = DAYS_OF_HISTORY * (size.rows_per_day / size.users + size.organic_per_user_day)
        events = np.sort(mean * activity_of(size, number))[::-1]
        axes.loglog(events, np.arange(1, len(events) + 1) / len(events), label=name)
    axes.axvline(16_384, color="grey", linewidth=0.8, linestyle=":")
    title = f"Expected history length, {DAYS_OF_HISTORY} days"
    axes.set(title=title, xlabel="events (dotted: 16,384)", ylabel="part of users with more")
    axes.legend(frameon=False, loc="lower left")


def _popularity(axes: Axes, day: Delivery) -> None:
    shown = np.sort(np.bincount(day.ad_I, minlength=len(day.ads.id_A)))[::-1]
    axes.loglog(np.arange(1, len(shown) + 1), np.maximum(shown, 0.5))
    axes.set(title="Popularity of ads", xlabel="rank of the ad", ylabel="impressions")


def _click_odds(axes: Axes, day: Delivery) -> None:
    surface = day.requests.surface_R[day.request_I]
    for index, name in enumerate(PLANTED_SURFACES):
        odds = np.log10(day.p_click_I[surface == index])
        axes.hist(odds, bins=60, density=True, histtype="step", label=name)
    axes.set(title="True click probability", xlabel="log10 p", ylabel="density")
    axes.legend(frameon=False, loc="upper left")


def _by_position(axes: Axes, day: Delivery) -> None:
    _truth_and_clicks(axes, day, day.position_I.astype(np.int64), 2)
    axes.set(title="Clicks by position", xlabel="position", ylabel="rate", xticks=range(3))


def _by_exposure(axes: Axes, day: Delivery) -> None:
    user = day.requests.user_R[day.request_I]
    key = user * len(day.ads.id_A) + day.ad_I
    order = np.argsort(key, kind="stable")
    _, begin, count = np.unique(key[order], return_index=True, return_counts=True)
    earlier = np.empty(len(key), dtype=np.int64)
    earlier[order] = np.arange(len(key)) - np.repeat(begin, count)
    # liking brings an ad back: only the first and later looks at one pair compare like with like
    again = np.isin(key, key[earlier >= 3])
    ratio = [
        day.p_click_I[again & (earlier == n)].mean() / day.p_click_I[again & (earlier == 0)].mean()
        for n in range(4)
    ]
    axes.plot(range(4), ratio, marker="o")
    axes.set(title="Fatigue: pairs shown four times or more", xlabel="earlier exposures today")
    axes.set(ylabel="p over that of the first", xticks=range(4))


def _truth_and_clicks(axes: Axes, day: Delivery, group: np.ndarray, last: int) -> None:
    values = np.arange(last + 1)
    rows = np.bincount(group, minlength=last + 1)
    clicks = np.bincount(group, weights=day.click_I, minlength=last + 1) / rows
    truth = np.bincount(group, weights=day.p_click_I, minlength=last + 1) / rows
    axes.bar(values, clicks, color="lightgrey", label="clicks")
    axes.plot(values, truth, marker="o", label="truth")
    axes.legend(frameon=False, loc="upper right")


def _delays(axes: Axes, day: Delivery) -> None:
    hours = np.sort(day.delay_I / HOUR_US)
    axes.semilogx(hours, np.arange(1, len(hours) + 1) / len(hours))
    axes.axvline(24, color="grey", linewidth=0.8, linestyle=":")
    axes.set(
        title="Delay of a conversion",
        xlabel="hours (dotted: window; after 48 none comes)",
        ylabel="part so far",
    )
    axes.set_xlim(0.02, 200)


def _drift(axes: Axes, world: PlantedConfig, number: int) -> None:
    days = (0, 1, 2, 4, 7, 10, 14)
    then = users_of(world, number, len(PLANTED_SURFACES))
    found = []
    for gap in days:
        now = users_of(world, number + gap, len(PLANTED_SURFACES))
        stayed = now.id_U == then.id_U
        pair = (then.shared_UD[stayed].ravel(), now.shared_UD[stayed].ravel())
        found.append(np.corrcoef(*pair)[0, 1])
    axes.plot(days, found, marker="o", label="interests of those who stay")
    axes.plot(days, DRIFT ** np.array(days), linestyle=":", label=f"{DRIFT}^days")
    axes.set(title="Drift of interest", xlabel="days later", ylabel="correlation")
    axes.legend(frameon=False, loc="upper right")


def _recurrence(axes: Axes, day: Delivery) -> None:
    requests = day.requests
    order = np.argsort(requests.user_R, kind="stable")[:6_000]
    user = requests.user_R[order]
    gaps = (1, 2, 4, 8, 16)
    shares = []
    for gap in gaps:
        same = np.flatnonzero(user[gap:] == user[:-gap])
        ads, before = requests.ads_RF[order[same + gap]], requests.ads_RF[order[same]]
        shares.append((ads[:, :, None] == before[:, None, :]).any(axis=2).mean())
    axes.plot(gaps, shares, marker="o")
    axes.set(title="Finalists that return", xlabel="requests later", ylabel="part", ylim=(0, 1))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
