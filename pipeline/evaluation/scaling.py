"""Stage `scaling_fit`: the law of every family from the points that are finished, and its plot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pipeline.evaluation.figures import law_figure
from pipeline.evaluation.scaling_fit import fit_ladder
from pipeline.run.errors import DataError
from pipeline.run.manifest import Manifest, Outcome, produce, read_manifest, write_json
from pipeline.run.paths import Run
from pipeline.run.scaling import Point, points

RESULT = "result.json"


def scaling_fit(run: Run, unit: str = "") -> Manifest:
    """Publish fit.json and law.svg of the points that are there, naming those that are missing.

    Raises `DataError` when no point is.
    """
    there = finished(run)
    missing = [p.unit for p in _planned(run) if p.unit not in there]
    if not there:
        raise DataError(f"{run.folder} has no finished point; run: python -m pipeline scaling")

    def build(folder: Path) -> Outcome:
        laws = fits(run, list(there))
        write_json(folder / "fit.json", {"missing": missing, "labels": laws})
        (folder / "law.svg").write_bytes(law_figure(laws))
        return Outcome(rows=len(there), figures={"points": len(there), "missing": len(missing)})

    return produce(
        run.output("scaling_fit"),
        stage="scaling_fit",
        inputs=there,
        settings=[missing],
        build=build,
    )


def fits(run: Run, units: list[str]) -> dict[str, Any]:
    """Kind of labels -> laws and comparisons."""
    results = [json.loads((run.output("scaling_point", u) / RESULT).read_text()) for u in units]
    kinds = sorted({r["point"]["labels"] for r in results})
    return {k: fit_ladder([r for r in results if r["point"]["labels"] == k]) for k in kinds}


def finished(run: Run) -> dict[str, str]:
    """Fingerprints of the finished points of the run's ladder, in its order."""
    manifests = {
        p.unit: read_manifest(run.output("scaling_point", p.unit), missing_ok=True)
        for p in _planned(run)
    }
    return {unit: m.fingerprint for unit, m in manifests.items() if m}


def speeds(run: Run) -> dict[str, float]:
    """Rows per second of every finished point; wall time, so kept out of what the fit publishes."""
    found = {}
    for unit in finished(run):
        manifest = read_manifest(run.output("scaling_point", unit))
        if manifest:
            found[unit] = float(manifest.read_figures()["rows_per_s"])
    return found


def _planned(run: Run) -> tuple[Point, ...]:
    return points(run.config.scaling) if run.config.scaling else ()
