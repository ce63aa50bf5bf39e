"""Figures as SVG or PNG bytes: the same picture for the report and for MLflow.

matplotlib is imported when the first figure is drawn; the bytes depend on the data alone.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Kind = Literal["svg", "png"]
Spread = Sequence[float | None]  # value, low, high
INK, FAINT, GRID = "#1f2a37", "#6b7280", "#e5e7eb"
PALETTE = ("#0f766e", "#b45309", "#4338ca", "#be123c", "#4d7c0f", "#0369a1", "#7e22ce", "#525252")
STYLE: Any = {
    "svg.hashsalt": "headwater",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "text.color": INK,
    "axes.edgecolor": GRID,
    "axes.labelcolor": FAINT,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.linewidth": 1.6,
}


def calibration_figure(
    curves: Mapping[str, Sequence[Sequence[float]]], title: str, kind: Kind = "svg"
) -> bytes:
    """Mean prediction against mean label per bin; `curves` are name -> [(pred, seen, rows)]."""
    import matplotlib as mpl

    with mpl.rc_context(STYLE):
        figure, axes = _canvas(3.4, 3.1)
        top = max((max(p[0], p[1]) for points in curves.values() for p in points), default=1.0)
        axes.plot([0, top], [0, top], color=FAINT, linewidth=1, linestyle=(0, (4, 3)))
        for place, (name, points) in enumerate(curves.items()):
            xs, ys = [p[0] for p in points], [p[1] for p in points]
            axes.plot(
                xs, ys, marker="o", markersize=3.5, color=PALETTE[place % len(PALETTE)], label=name
            )
        axes.set(title=title, xlabel="predicted rate", ylabel="seen rate")
        if len(curves) > 1:
            axes.legend()
        return _bytes(figure, kind)


def spread_figure(
    rows: Mapping[str, Mapping[str, Spread]],
    title: str,
    label: str,
    kind: Kind = "svg",
    reference: float | None = None,
) -> bytes:
    """Values with intervals, one line per row and one mark per series: row -> series -> spread."""
    import matplotlib as mpl

    names = list(rows)
    series = list(dict.fromkeys(s for values in rows.values() for s in values))
    with mpl.rc_context(STYLE):
        figure, axes = _canvas(6.4, 0.9 + 0.36 * len(names))
        if reference is not None:
            axes.axvline(reference, color=FAINT, linewidth=1, linestyle=(0, (4, 3)))
        for place, name in enumerate(series):
            shift = (place - (len(series) - 1) / 2) * 0.22
            _spreads(axes, names, rows, name, shift, PALETTE[place % len(PALETTE)])
        axes.set(title=title, xlabel=label)
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.grid(visible=False, axis="y")
        if len(series) > 1:
            axes.legend(loc="best")
        return _bytes(figure, kind)


def curve_figure(
    lines: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    title: str,
    labels: tuple[str, str],
    kind: Kind = "svg",
) -> bytes:
    """Lines over a common x axis: name -> (xs, ys)."""
    import matplotlib as mpl

    with mpl.rc_context(STYLE):
        figure, axes = _canvas(6.4, 2.6)
        for place, (name, (xs, ys)) in enumerate(lines.items()):
            axes.plot(xs, ys, color=PALETTE[place % len(PALETTE)], label=name)
        axes.set(title=title, xlabel=labels[0], ylabel=labels[1])
        if len(lines) > 1:
            axes.legend()
        return _bytes(figure, kind)


def days_figure(
    days: Sequence[str],
    values: Mapping[str, Sequence[Spread | None]],
    title: str,
    label: str,
    kind: Kind = "svg",
) -> bytes:
    """One mark with its interval per day and series: series -> a spread per day."""
    import matplotlib as mpl

    with mpl.rc_context(STYLE):
        figure, axes = _canvas(6.4, 2.6)
        for place, (name, spreads) in enumerate(values.items()):
            color = PALETTE[place % len(PALETTE)]
            known = [(x, *_numbers(spread)) for x, spread in enumerate(spreads) if spread]
            axes.plot([k[0] for k in known], [k[1] for k in known], color=color, marker="o",
                      markersize=3.5, label=name)  # fmt: skip
            for x, _, low, high in known:
                axes.plot([x, x], [low, high], color=color, linewidth=1, alpha=0.6)
        axes.set(title=title, ylabel=label)
        step = max(1, len(days) // 8)
        axes.set_xticks(range(0, len(days), step), [d[5:] for d in days[::step]])
        if len(values) > 1:
            axes.legend()
        return _bytes(figure, kind)


def shares_figure(
    shares: Mapping[str, Mapping[str, float]], title: str, kind: Kind = "svg"
) -> bytes:
    """Stacked horizontal bars: bar -> part -> share."""
    import matplotlib as mpl

    bars = list(shares)
    parts = list(dict.fromkeys(p for values in shares.values() for p in values))
    with mpl.rc_context(STYLE):
        figure, axes = _canvas(6.4, 0.9 + 0.42 * len(bars))
        left = [0.0] * len(bars)
        for place, part in enumerate(parts):
            widths = [shares[bar].get(part, 0.0) for bar in bars]
            axes.barh(bars, widths, left=left, height=0.62, label=part,
                      color=PALETTE[place % len(PALETTE)])  # fmt: skip
            left = [a + b for a, b in zip(left, widths, strict=True)]
        axes.set(title=title)
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.legend(ncols=min(len(parts), 5), loc="upper left", bbox_to_anchor=(0, -0.12))
        return _bytes(figure, kind)


def law_figure(fits: Mapping[str, Any], kind: Kind = "svg") -> bytes:
    """NE over training FLOPs, a panel per kind of labels: rungs with intervals, and the laws.

    `fits` is what the fit of the scaling law found: labels -> families and their rungs.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter

    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(3.9 * len(fits) + 0.6, 3.4), layout="constrained")
        panels = figure.subplots(1, len(fits), squeeze=False, sharey=True)[0]
        for axes, (labels, fit) in zip(panels, fits.items(), strict=True):
            for place, (name, family) in enumerate(fit["families"].items()):
                _law(axes, fit["c0"], family, name, PALETTE[place % len(PALETTE)])
            axes.axhline(fit["bayes"], color=FAINT, linewidth=1, linestyle=(0, (4, 3)))
            axes.set(title=f"{labels} labels", xlabel="training FLOPs", xscale="log")
            axes.xaxis.set_minor_formatter(NullFormatter())  # its labels would overlap
        panels[0].set_ylabel("NE against the truth (dashed: Bayes)")
        panels[-1].legend()
        return _bytes(figure, kind)


def _law(axes: Axes, c0: float, family: Mapping[str, Any], name: str, color: str) -> None:
    """A family's rungs and, where it has one, its line."""
    xs = [rung["compute"] for rung in family["rungs"]]
    for rung in family["rungs"]:
        low, high = rung["ne"]["low"], rung["ne"]["high"]
        axes.plot([rung["compute"]] * 2, [low, high], color=color, linewidth=1, alpha=0.6)
    axes.plot(xs, [r["ne"]["value"] for r in family["rungs"]], "o", color=color, markersize=4,
              label=name)  # fmt: skip
    if "eta" in family:
        ends = [xs[0], xs[-1]]
        line = [family["ne0"]["value"] - family["eta"]["value"] * math.log(x / c0) for x in ends]
        axes.plot(ends, line, color=color, linewidth=1.2)


def _spreads(
    axes: Axes,
    names: Sequence[str],
    rows: Mapping[str, Mapping[str, Spread]],
    series: str,
    shift: float,
    color: str,
) -> None:
    label: str | None = series
    for y, row in enumerate(names):
        spread = rows[row].get(series)
        if not spread:
            continue
        value, low, high = _numbers(spread)
        axes.plot([low, high], [y + shift] * 2, color=color, linewidth=1.4)
        axes.plot([value], [y + shift], "o", color=color, markersize=5, label=label)
        label = None


def _numbers(spread: Spread) -> tuple[float, float, float]:
    value, low, high = (float("nan") if number is None else number for number in spread)
    return value, low, high


def _canvas(width: float, height: float) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes: Axes = figure.add_subplot()
    return figure, axes


def _bytes(figure: Figure, kind: Kind) -> bytes:
    stream = io.BytesIO()
    metadata = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
    figure.savefig(stream, format=kind, dpi=144, transparent=kind == "svg", metadata=metadata)
    return stream.getvalue()
