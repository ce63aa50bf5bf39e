"""What the report says: each function reads one part of the run folder; None when it is absent."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from pipeline.evaluation import figures, records
from pipeline.evaluation.intervals import triple
from pipeline.evaluation.lineage import earlier_runs, read_json
from pipeline.evaluation.scaling import speeds
from pipeline.run.codec import from_dict, to_dict
from pipeline.run.errors import ConfigError, DataError
from pipeline.run.manifest import MANIFEST, read_manifest
from pipeline.run.paths import Run, confined, open_run
from pipeline.run.scaling import Point

Section = dict[str, Any]
CONTRACTS = ("contracts", "mixture_contract", "representation_contract")
HISTORY_DAYS = 30


def headline(run: Run) -> Section | None:
    """The primary objective over all surfaces, and the decision."""
    measured = read_json(run, "evaluate", "metrics.json")
    if not measured:
        return None
    objective = run.config.evaluation.primary_objective
    cell = measured["overall"].get(objective)
    if not cell:
        return None
    return {
        "objective": objective,
        "cell": cell,
        "truth": cell.get("truth", {}).get("probability"),
        "decision": (read_json(run, "promote", "decision.json") or {}).get("decision"),
        "champion": measured.get("champion"),
    }


def quality(run: Run) -> Section | None:
    """Champion against challenger per surface and objective, with pictures."""
    measured = read_json(run, "evaluate", "metrics.json")
    if not measured:
        return None
    rows = [
        {"surface": surface, "objective": objective, "cell": cell}
        for surface, objective, cell in records.cells_of(run, measured)
    ]
    plots = [
        figures.calibration_figure(
            {m: cell[m]["curve"] for m in ("challenger", "champion") if m in cell},
            f"{surface} / {objective}",
        )
        for surface, objective, cell in records.cells_of(run, measured)
        if cell["positives"] >= run.config.evaluation.min_positives
    ]
    title = "NE with 95% intervals over users"
    spread = figures.spread_figure(records.ne_rows(run, measured), title, "NE", reference=1.0)
    return {
        "rows": rows,
        "has_champion": any("champion" in r["cell"] for r in rows),
        "has_truth": any("truth" in r["cell"] for r in rows),
        "ne_plot": _inline(spread),
        "calibration_plots": [_inline(p) for p in plots],
        "draws": measured["draws"],
        "num_rows": measured["num_rows"],
    }


def slices(run: Run) -> Section | None:
    """The primary objective by user age, history length and hour."""
    measured = read_json(run, "evaluate", "metrics.json")
    objective = run.config.evaluation.primary_objective
    rows = [
        {"slice": name, "part": part, "cell": cells[objective]}
        for name, parts in (measured or {}).get("slices", {}).items()
        for part, cells in sorted(parts.items(), key=_natural)
        if objective in cells
    ]
    return {"objective": objective, "rows": rows} if rows else None


def decision(run: Run) -> Section | None:
    """The promotion decision with its gates."""
    found: Section | None = read_json(run, "promote", "decision.json")
    return found


def training(run: Run) -> Section | None:
    """The loss curve and the last figures of the training log."""
    last = records.last_figures(run)
    if not last:
        return None
    titles = {"loss": "Training loss", "ne": "Training NE"}
    curves = {name: records.training_curve(run, name) for name in titles}
    plots = [
        _inline(figures.curve_figure(lines, titles[name], ("step", name)))
        for name, lines in curves.items()
        if lines
    ]
    return {"plots": plots, "last": last}


def contracts(run: Run) -> Section | None:
    """Expectations per boundary, and the warnings."""
    found = {name: read_json(run, name, "result.json") for name in CONTRACTS}
    rows = [
        {
            "name": name,
            "rows": result["rows"],
            "expectations": len(result["expectations"]),
            "failed": [e for e in result["expectations"] if not e["success"]],
            "success": result["success"],
        }
        for name, result in found.items()
        if result
    ]
    return {"rows": rows} if rows else None


def mix(run: Run) -> Section | None:
    """Shares and cost of the mixture."""
    manifest = read_manifest(run.output("mix"), missing_ok=True)
    if manifest is None:
        return None
    found = manifest.read_figures()
    shares = records.mix_shares(run)
    title = "Shares of candidates, kept rows and rows kept for certain"
    plot = figures.shares_figure(shares, title) if shares else None
    labels = [
        {"surface": surface, "objective": objective} | counts
        for surface, one in found.get("surfaces", {}).items()
        for objective, counts in one.get("objectives", {}).items()
    ]
    drawn = _inline(plot) if plot else None
    return found | {"plot": drawn, "kept": manifest.rows, "labels": labels}


def ledger(run: Run) -> Section | None:
    """Rows in, out, quarantined and duplicate per table, over all ingest units."""
    rows = []
    for unit in (*run.config.surfaces, "rest"):
        found = read_json(run, "ingest", unit, "ledger.json")
        for table, counts in (found or {}).get("totals", {}).items():
            rows.append({"unit": unit, "table": table} | counts)
    return {"rows": rows} if rows else None


def transfer(run: Run) -> Section | None:
    """The transfer table, against labels and the truth, with the students' decisions."""
    table = read_json(run, "evaluate_students", "table.json")
    if not table or not table["rows"]:
        return None
    decided = read_json(run, "promote_students", "decision.json") or {}
    kinds = {"labels": table["rows"], "the planted truth": table.get("truth", [])}
    return {
        "tables": {kind: _marked(rows) for kind, rows in kinds.items() if rows},
        "decisions": decided.get("surfaces", {}),
    }


SWEEPS = {"budget_percent": "percent of the budget", "ttl_hours": "life of a vector, hours"}


def solaris(run: Run) -> Section | None:
    """Coverage of the replay by source, and what other budgets and lives would cover."""
    found = read_json(run, "replay", "coverage.json")
    if not found:
        return None
    asked = {"asked pairs": found.get("asked"), "shown": found.get("shown")}
    parts = asked | found.get("shown_by_surface", {})
    learned = records.as_served(run)
    parts |= {f"learned from, {surface}": part for surface, part in learned.items()}
    return {
        "parts": {name: part for name, part in parts.items() if part},
        "budget": found.get("budget", {}),
        "sweeps": {SWEEPS[name]: points for name, points in found.get("sweeps", {}).items()},
    }


def scaling(run: Run) -> Section | None:
    """The scaling law: rungs of every family, the laws, and Kunlun against the others."""
    found = read_json(run, "scaling_fit", "fit.json")
    if not found:
        return None
    speed = speeds(run)
    kinds = {
        labels: {
            "families": {
                name: family | {"rows": _rungs(family, speed)}
                for name, family in fit["families"].items()
            },
            "against": fit["against"],
            "bayes": fit["bayes"],
        }
        for labels, fit in found["labels"].items()
    }
    plot = _inline(figures.law_figure(found["labels"]))
    return {"kinds": kinds, "plot": plot, "missing": found["missing"], "terms": _terms(found)}


def _rungs(family: dict[str, Any], speed: dict[str, float]) -> list[dict[str, Any]]:
    """A row per rung: its NE, and the means over its seeds of part scores and rows per second."""
    rows = []
    for rung in family["rungs"]:
        mine = [p for p in family["points"] if p["point"]["rung"] == rung["rung"]]
        units = [from_dict(Point, p["point"]).unit for p in mine]
        parts = {t: fmean(p["parts"][t]["explained"] for p in mine) for t in mine[0]["parts"]}
        rows.append(
            rung
            | {
                "seeds": len(mine),
                "rates": mine[0]["rates"],
                "labels_ne": fmean(p["ne"]["labels"] for p in mine),
                "parts": parts,
                "rows_per_s": fmean(speed[u] for u in units),
            }
        )
    return rows


def _terms(found: dict[str, Any]) -> list[str]:
    fit = next(iter(found["labels"].values()))
    return list(next(iter(fit["families"].values()))["points"][0]["parts"])


def timings(run: Run) -> Section | None:
    """Seconds and rows of every finished stage, from its manifest, slowest first."""
    rows: list[dict[str, Any]] = []
    for path in sorted(run.folder.glob(f"*/{MANIFEST}")) + sorted(
        run.folder.glob(f"*/*/{MANIFEST}")
    ):
        manifest = read_manifest(path.parent)
        if manifest and manifest.stage != "report":
            name = f"{manifest.stage} {manifest.unit}".strip()
            rows.append({"name": name, "seconds": manifest.seconds, "rows": manifest.rows,
                         "bytes": manifest.bytes})  # fmt: skip
    rows.sort(key=lambda row: -row["seconds"])
    total = sum(row["seconds"] for row in rows)
    top = max((row["seconds"] for row in rows), default=0.0)
    return {"rows": rows, "total": total, "top": top} if rows else None


def config_changes(run: Run) -> Section | None:
    """Fields of the config that differ from the champion's."""
    parent = run.config.parent
    if parent is None:
        return None
    try:
        before = open_run(confined(run.home, parent.folder)).config
    except (ConfigError, DataError):
        return None
    old, new = _flat(to_dict(before)), _flat(to_dict(run.config))
    names = [n for n in sorted(old | new) if not n.startswith(("parent", "day"))]
    rows = [
        {"field": n, "champion": old.get(n, ""), "challenger": new.get(n, "")}
        for n in names
        if old.get(n) != new.get(n)
    ]
    return {"rows": rows, "day": parent.day}


def history(run: Run) -> Section | None:
    """The primary NE and the decision of the lineage's last days, this one included."""
    objective = run.config.evaluation.primary_objective
    rows = []
    for past in [*reversed(earlier_runs(run, limit=HISTORY_DAYS - 1)), run]:
        cell = (read_json(past, "evaluate", "metrics.json") or {}).get("overall", {}).get(objective)
        if cell:
            found = read_json(past, "promote", "decision.json") or {}
            rows.append({"day": past.config.day, "cell": cell, "decision": found.get("decision")})
    if len(rows) < 2:
        return None
    series = {
        model: [triple(r["cell"][model]["ne"]) if model in r["cell"] else None for r in rows]
        for model in ("challenger", "champion")
    }
    days = [r["day"] for r in rows]
    plot = figures.days_figure(days, series, f"{objective} NE by day", "NE")
    return {"rows": rows[::-1], "plot": _inline(plot), "objective": objective}


def _marked(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows with `first` on the first of a surface and objective, for a rule in the table."""
    marked, before = [], None
    for row in rows:
        key = (row["surface"], row["objective"])
        marked.append(row | {"first": key != before})
        before = key
    return marked


def _natural(part: tuple[str, Any]) -> tuple[int, str]:
    """Sorts "0", "1-4", "5-16", "17+" by their first number."""
    digits = re.match(r"\d+", part[0])
    return int(digits.group()) if digits else 0, part[0]


def _flat(tree: Any, prefix: str = "") -> dict[str, str]:
    if isinstance(tree, dict) and tree:
        found: dict[str, str] = {}
        for name, value in tree.items():
            found |= _flat(value, f"{prefix}.{name}" if prefix else name)
        return found
    if isinstance(tree, list) and any(isinstance(v, (dict, list)) for v in tree):
        return _flat({_label(v, i): v for i, v in enumerate(tree)}, prefix)
    return {prefix: json.dumps(tree)}


def _label(value: Any, place: int) -> str:
    return str(value.get("name", place)) if isinstance(value, dict) else str(place)


def _inline(svg: bytes) -> str:
    """The <svg> element alone, for a page that holds it."""
    text = svg.decode()
    return text[text.index("<svg") :]
