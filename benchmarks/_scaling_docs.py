"""The committed table of the scaling law: docs/scaling.json, its plot, its section of the docs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks._experiments import replace_section, table
from pipeline.evaluation.figures import law_figure
from pipeline.evaluation.scaling import speeds
from pipeline.run.paths import REPOSITORY, Run

DOCS = REPOSITORY / "docs"
PAGE = DOCS / "experiments.md"
NAMED = re.compile(r"[a-z0-9-]*")


def table_of(name: str = "") -> Path:
    """The file of a ladder's table; a ladder besides the main one has a name."""
    return DOCS / f"scaling{name and f'-{name}'}.json"


def committed(name: str = "") -> dict[str, Any]:
    """The committed table; empty when there is none yet."""
    path = table_of(name)
    found: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    return found


def record_ladder(run: Run, size: str, overrides: dict[str, Any], name: str = "") -> None:
    """Write a ladder's fit, its plot and the section of the page."""
    fit = json.loads((run.output("scaling_fit") / "fit.json").read_text())
    more = f" --ladder '{json.dumps(overrides)}'" if overrides else ""
    more += f" --name {name}" if name else ""
    found = committed(name) | {
        "name": name,
        "command": f"python -m benchmarks.scaling --size {size}{more}",
        "fit": fit,
        "rows_per_s": {unit: round(speed) for unit, speed in speeds(run).items()},
    }
    record_table(found)


def record_table(found: dict[str, Any]) -> None:
    """Write a table, its plot and its section."""
    path = table_of(found["name"])
    _write(path, found)
    path.with_suffix(".png").write_bytes(law_figure(found["fit"]["labels"], "png"))
    replace_section(PAGE, f"scaling law {found['name']}".strip(), section(found))


def record_quick(nes: dict[str, float]) -> None:
    """Write what a quick run is compared with."""
    _write(table_of(), committed() | {"quick": nes})


def section(found: dict[str, Any]) -> str:
    """The table as Markdown; what it means is written by hand, outside of it."""
    name = found["name"]
    parts = [
        f"### Table of the scaling law{name and f': {name}'}\n\n`{found['command']}`; NE against "
        "the planted truth on two held-out days, mean over seeds, 95% intervals over users and "
        "seeds. Part scores: the share of each part of the click logit that the models explain "
        "(docs/planted.md).",
        f"![NE over training FLOPs]({table_of(name).with_suffix('.png').name})",
    ]
    if found["fit"]["missing"]:
        parts.append(f"Not trained: {', '.join(found['fit']['missing'])}.")
    for labels, fit in found["fit"]["labels"].items():
        parts.append(f"#### {labels} labels (Bayes NE {fit['bayes']:.4f})")
        parts.append(_rungs(fit, labels, found["rows_per_s"]))
        parts.append(_laws(fit))
    return "\n\n".join(parts)


def _rungs(fit: dict[str, Any], labels: str, speed: dict[str, float]) -> str:
    first = next(iter(fit["families"].values()))["points"][0]
    terms = list(first["parts"])
    rows = []
    for name, family in fit["families"].items():
        for rung in family["rungs"]:
            mine = [p for p in family["points"] if p["point"]["rung"] == rung["rung"]]
            each = [speed[f"{name}-r{rung['rung']}-{labels}-s{p['point']['seed']}"] for p in mine]
            shares = [fmean(p["parts"][t]["explained"] for p in mine) for t in terms]
            rates = " / ".join(f"{rate:g}" for rate in mine[0]["rates"])
            rows.append(
                [name, f"{rung['mflop']:.2f}", str(len(mine)), rates, _spread(rung["ne"], 4)]
                + [f"{fmean(p['ne']['labels'] for p in mine):.4f}"]
                + [f"{share:.2f}" for share in shares]
                + [f"{fmean(each):.0f}"]
            )
    head = ("family", "MFLOP", "seeds", "rates", "NE", "NE, labels", *terms, "rows/s")
    return table(head, rows)


def _laws(fit: dict[str, Any]) -> str:
    rows = []
    for name, family in fit["families"].items():
        against, holdout = fit["against"].get(name, {}), family.get("holdout")
        rows.append(
            [
                name,
                _spread(family.get("eta"), 4),
                f"{holdout['observed']:.4f}" if holdout else "-",
                _spread(holdout, 4),
                _spread(against.get("gain_pct"), 2),
                _spread(against.get("slope_ratio"), 2),
            ]
        )
    head = (
        "family",
        "eta",
        "largest rung",
        "predicted",
        "Kunlun's gain %",
        "eta ratio, Kunlun to it",
    )
    return table(head, rows)


def _spread(found: dict[str, Any] | None, digits: int) -> str:
    if not found or found["value"] is None:
        return "-"
    value = f"{found['value']:.{digits}f}"
    if found["low"] is None:
        return value
    return f"{value} [{found['low']:.{digits}f}, {found['high']:.{digits}f}]"


def _write(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n")
