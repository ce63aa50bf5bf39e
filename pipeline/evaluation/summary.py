"""Scored rows to metrics with intervals: overall, per surface x objective, and per slice."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from pipeline.evaluation import metrics
from pipeline.evaluation.intervals import Draws, interval, number, resample, triple
from pipeline.evaluation.metrics import Floats, ratio
from pipeline.evaluation.truth import TRUE_PREFIX
from pipeline.run.config import OVERALL
from pipeline.run.window import HOUR_US

Cell = dict[str, Any]
CURVE_BINS = 10
# Slices by the number of events that the model saw of the user: [low, next low).
HISTORY_LOWS = (0, 1, 5, 17)
HOURS_PER_SLICE = 6
COLUMN_OF = {"challenger": "p_", "champion": "c_"}


def summarise(
    predictions: pl.DataFrame, surfaces: tuple[str, ...], objectives: tuple[str, ...], draws: int
) -> dict[str, Any]:
    """Everything that metrics.json says about `predictions` (docs/architecture.md, evaluate)."""

    def cells(rows: pl.DataFrame, *, curve: bool) -> dict[str, Cell]:
        found = {o: cell(rows, o, draws=draws, curve=curve) for o in objectives}
        return {o: c for o, c in found.items() if c["rows"]}

    overall = cells(predictions, curve=True)
    by_surface = {
        s: cells(predictions.filter(pl.col("surface") == s), curve=True) for s in surfaces
    }
    return {
        "num_rows": len(predictions),
        "draws": draws,
        "rows": [
            _flat(s, o, c)
            for s, cs in ((OVERALL, overall), *by_surface.items())
            for o, c in cs.items()
        ],
        "overall": overall,
        "surfaces": by_surface,
        "slices": {
            name: {label: cells(rows, curve=False) for label, rows in parts.items() if len(rows)}
            for name, parts in _slices(predictions).items()
        },
    }


def _flat(surface: str, objective: str, found: Cell) -> Cell:
    """One line per surface and objective, intervals as [value, low, high]: for tables."""
    challenger = found["challenger"]
    row: Cell = {"surface": surface, "objective": objective}
    row |= {name: triple(challenger[name]) for name in ("ne", "auc", "calibration")}
    if "champion" in found:
        row["champion_ne"] = found["champion"]["ne"]["value"]
    if "truth" in found:
        row["closed"] = found["truth"]["probability"]["challenger"]["closed"]["value"]
    return row | {"rows": found["rows"], "positives": found["positives"]}


def cell(rows: pl.DataFrame, objective: str, *, draws: int, curve: bool = False) -> Cell:
    """Metrics of one objective on `rows`, whose immature labels are left out.

    `challenger` and `champion` hold ne, auc, calibration (with 95% intervals over users), gauc,
    ece, log_loss and rce; `difference` is challenger - champion, paired; `truth` compares with
    the planted probability.
    """
    rows = rows.filter(pl.col(f"m_{objective}"))
    y_N, users_N = rows[f"y_{objective}"].to_numpy(), rows["user_id"].to_numpy()
    scored = {
        name: rows[prefix + objective].to_numpy()
        for name, prefix in COLUMN_OF.items()
        if prefix + objective in rows.columns
    }
    found: Cell = {
        "rows": len(rows),
        "users": int(rows["user_id"].n_unique()),
        "positives": int(y_N.sum()),
        "base_rate": number(float(y_N.mean())) if len(rows) else None,
    }
    true = TRUE_PREFIX + objective
    everything = scored | ({"bayes": rows[true].to_numpy()} if true in rows.columns else {})
    drawn = resample(users_N, y_N, everything, draws=draws)
    for name, p_N in scored.items():
        found[name] = _scores(drawn[name]) | _points(y_N, p_N, users_N)
        if curve:
            found[name]["curve"] = _curve(y_N, p_N)
    if "champion" in scored:
        found["difference"] = _difference(drawn["challenger"], drawn["champion"])
    if "bayes" in everything:
        found["truth"] = _against_truth(users_N, everything, drawn, draws)
    return found


def _scores(drawn: Draws) -> Cell:
    return {
        "ne": interval(drawn.ne_D).to_json(),
        "auc": interval(drawn.auc_D).to_json(),
        "calibration": interval(drawn.calibration_D).to_json(),
    }


def _points(y_N: Floats, p_N: Floats, users_N: Floats) -> Cell:
    return {
        "gauc": number(metrics.gauc(y_N, p_N, users_N)),
        "ece": number(metrics.expected_calibration_error(y_N, p_N)),
        "log_loss": number(metrics.log_loss(y_N, p_N)),
        "rce": number(metrics.relative_cross_entropy(y_N, p_N)),
    }


def _curve(y_N: Floats, p_N: Floats) -> list[list[float]]:
    columns = metrics.calibration_curve(y_N, p_N, bins=CURVE_BINS)
    return [[float(v) for v in point] for point in zip(*columns, strict=True)]


def _difference(challenger: Draws, champion: Draws) -> Cell:
    ne_D = challenger.ne_D - champion.ne_D
    return {
        "ne": interval(ne_D).to_json(),
        "ne_gain_pct": interval(-100 * ratio(ne_D, champion.ne_D)).to_json(),
        "auc": interval(challenger.auc_D - champion.auc_D).to_json(),
        "calibration": interval(challenger.calibration_D - champion.calibration_D).to_json(),
    }


def _against_truth(
    users_N: Floats, everything: dict[str, Floats], on_labels: dict[str, Draws], draws: int
) -> Cell:
    """How much of the way to Bayes is closed: on the drawn labels, and on the probabilities."""
    on_truth = resample(users_N, everything["bayes"], everything, draws=draws, with_auc=False)
    found: Cell = {}
    for name, drawn in (("labels", on_labels), ("probability", on_truth)):
        bayes_D = drawn["bayes"].ne_D
        found[name] = {"bayes_ne": interval(bayes_D).to_json()}
        for model in COLUMN_OF:
            if model in drawn:
                ne_D = drawn[model].ne_D
                found[name][model] = {
                    "ne": interval(ne_D).to_json(),
                    "closed": interval(ratio(1 - ne_D, 1 - bayes_D)).to_json(),
                }
    return found


def _slices(rows: pl.DataFrame) -> dict[str, dict[str, pl.DataFrame]]:
    history, hour = pl.col("history"), pl.col("ts_us") // HOUR_US % 24
    spans = list(zip(HISTORY_LOWS, [*HISTORY_LOWS[1:], np.iinfo(np.int64).max], strict=True))
    begins = range(0, 24, HOURS_PER_SLICE)
    return {
        "user": {"new": rows.filter(history == 0), "known": rows.filter(history > 0)},
        "history": {
            _span(low, high): rows.filter((history >= low) & (history < high))
            for low, high in spans
        },
        "hour": {
            f"{h:02d}-{h + HOURS_PER_SLICE:02d}": rows.filter(
                hour // HOURS_PER_SLICE * HOURS_PER_SLICE == h
            )
            for h in begins
        },
    }


def _span(low: int, high: int) -> str:
    if high == low + 1:
        return str(low)
    return f"{low}+" if high > HISTORY_LOWS[-1] else f"{low}-{high - 1}"
