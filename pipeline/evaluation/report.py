"""Stage `report`: one self-contained HTML page about the run, of the parts that are there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline.evaluation import records, report_sections
from pipeline.evaluation.intervals import triple
from pipeline.evaluation.lineage import earlier_runs
from pipeline.run.manifest import Manifest, Outcome, produce, read_manifest
from pipeline.run.paths import Run

TEMPLATE = Path(__file__).parent / "templates" / "report.html.j2"
SECTIONS = (
    "headline",
    "decision",
    "quality",
    "slices",
    "transfer",
    "solaris",
    "scaling",
    "training",
    "mix",
    "contracts",
    "ledger",
    "history",
    "config_changes",
    "timings",
)
DASH = "\u2013"
ALSO_READ = ("contracts", "mixture_contract", "representation_contract", "ingest")


def report(run: Run, unit: str = "") -> Manifest:
    """Publish report.html (docs/architecture.md); stages that have not run have no section.

    The page shows how long each stage took, so its bytes, alone of all outputs, depend on time.
    """
    inputs = _inputs(run)

    def build(folder: Path) -> Outcome:
        page = render(run)
        (folder / "report.html").write_text(page)
        return Outcome(rows=page.count("<section"))

    return produce(
        run.output("report"), stage="report", inputs=inputs, settings=run.config, build=build
    )


def render(run: Run) -> str:
    """The page as text."""
    import jinja2

    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"spread": spread, "figure": figure, "count": count, "percent": percent}
    sections = {name: getattr(report_sections, name)(run) for name in SECTIONS}
    template = environment.from_string(TEMPLATE.read_text())
    return template.render(run=run, config=run.config, folder=run.folder.name, **sections)


def figure(value: float | None, digits: int = 4) -> str:
    """A number with fixed digits; a dash when there is none."""
    return DASH if value is None else f"{value:.{digits}f}"


def count(value: float | None) -> str:
    """A whole number with thin spaces between thousands."""
    return DASH if value is None else f"{round(value):,}".replace(",", "\u202f")


def percent(value: float | None, digits: int = 1) -> str:
    """A share as percent."""
    return DASH if value is None else f"{100 * value:.{digits}f}\u202f%"


def spread(found: Any, digits: int = 4, sign: str = "") -> str:
    """A value with its interval: 0.8123 [0.80, 0.82]; takes value, low and high as dict or list."""
    if not found:
        return DASH
    value, low, high = triple(found) if isinstance(found, dict) else found
    if value is None:
        return DASH
    if low is None or high is None:
        return f"{value:{sign}.{digits}f}"
    return f"{value:{sign}.{digits}f} [{low:{sign}.{digits}f}, {high:{sign}.{digits}f}]"


def _inputs(run: Run) -> dict[str, str]:
    found: dict[str, str] = {}
    for experiment in records.STAGES:
        found |= records.fingerprints(run, experiment)
    for stage in ALSO_READ:
        for folder in [run.output(stage), *sorted(run.output(stage).glob("*/"))]:
            manifest = read_manifest(folder, missing_ok=True) if folder.is_dir() else None
            if manifest:
                found[str(folder.relative_to(run.folder))] = manifest.fingerprint
    for past in earlier_runs(run):
        manifest = read_manifest(past.output("evaluate"), missing_ok=True)
        if manifest:
            found[f"evaluate of {past.config.day}"] = manifest.fingerprint
    return found
