"""What a contract stage does with its verdicts: publish them, or stop the run with the reason."""

from __future__ import annotations

import datetime as dt
import html
import logging
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.run.errors import ContractError
from pipeline.run.manifest import Outcome, replacing, write_json
from pipeline.run.paths import Run

log = logging.getLogger(__name__)
SHOWN = 10
DOCS_DAYS = 60  # Data Docs of older days are removed


def docs_folder(run: Run, stage: str) -> Path:
    """Data Docs of a contract stage; they hold times, so no fingerprint covers them."""
    folder = run.inside("data_docs", stage)
    folder.parent.mkdir(parents=True, exist_ok=True)
    return folder


def settle(
    run: Run, stage: str, folder: Path, rows: int, verdicts: Sequence[Mapping[str, Any]]
) -> Outcome:
    """Write result.json into `folder`; `ContractError` when a critical expectation failed.

    Each verdict has expectation, on, column, severity, reason, success and observed. The result
    of a failed contract goes to contract_failures/<stage>.json of the run folder.
    """
    failed = [v for v in verdicts if not v["success"]]
    critical = [v for v in failed if v["severity"] == "critical"]
    result = {
        "contract": stage,
        "success": not critical,
        "rows": rows,
        "expectations": [dict(v) for v in verdicts],
    }
    _write_index(run)
    _keep_recent(run)
    for verdict in failed:
        log.warning("%s: %s: %s", stage, verdict["severity"], line(verdict))
    report = run.inside("contract_failures", f"{stage}.json")
    if critical:
        report.parent.mkdir(exist_ok=True)
        write_json(report, result)
        raise ContractError(_message(run, stage, rows, critical, report))
    report.unlink(missing_ok=True)
    write_json(folder / "result.json", result)
    return Outcome(
        rows=rows, figures={"expectations": len(verdicts), "warnings": len(failed), "critical": 0}
    )


def line(verdict: Mapping[str, Any]) -> str:
    """A failed verdict as one line: what, the first bad values, and why it matters."""
    what = f"{verdict['on']} {verdict['column'] or 'table'} breaks {verdict['expectation']}"
    values = f", first {', '.join(verdict['observed'])}" if verdict["observed"] else ""
    return f"{what}{values} ({verdict['reason']})"


def require_columns(table: str, present: Sequence[str], required: Sequence[str]) -> None:
    """`ContractError` unless every required column is present."""
    missing = [name for name in required if name not in present]
    if missing:
        raise ContractError(
            f"{table} lacks the columns {', '.join(missing)}; it has {', '.join(present)}; "
            "run the stage that writes it again"
        )


def _message(
    run: Run, stage: str, rows: int, critical: Sequence[Mapping[str, Any]], report: Path
) -> str:
    lines = "\n".join(f"  {line(v)}" for v in critical[:SHOWN])
    more = f"\n  and {len(critical) - SHOWN} more" if len(critical) > SHOWN else ""
    return (
        f"{stage} of {run.config.day}: {len(critical)} critical expectations failed on {rows} "
        f"rows:\n{lines}{more}\nAll verdicts: {report}; pages: {docs_folder(run, stage)}/index.html"
    )


def docs_index(home: Path) -> Path:
    """The page that lists the Data Docs of all runs that are still kept."""
    return home / "runs" / "data_docs.html"


def _write_index(run: Run) -> None:
    folder = run.inside("data_docs")
    folder.mkdir(exist_ok=True)
    stages = sorted(p.parent.name for p in folder.glob("*/index.html"))
    _write_page(folder / "index.html", [(s, f"{s}/index.html") for s in stages])


def _keep_recent(run: Run) -> None:
    """Remove Data Docs of days more than `DOCS_DAYS` before the run's, and list the others."""
    runs = run.home / "runs"
    oldest = dt.date.fromisoformat(run.config.day) - dt.timedelta(days=DOCS_DAYS)
    links = []
    for folder in sorted(runs.glob("????-??-??/*/data_docs"), reverse=True):
        day, name = folder.parts[-3:-1]
        if day <= oldest.isoformat():
            shutil.rmtree(folder, ignore_errors=True)
            continue
        for page in sorted(folder.glob("*/index.html")):
            title = f"{day} {page.parent.name} ({name})"
            links.append((title, page.relative_to(runs).as_posix()))
    _write_page(docs_index(run.home), links)


def _write_page(path: Path, links: Sequence[tuple[str, str]]) -> None:
    items = "".join(
        f'<li><a href="{html.escape(target)}">{html.escape(title)}</a>' for title, target in links
    )
    title = "<meta charset=utf-8><title>Contracts</title><h1>Contracts</h1>"
    with replacing(path) as file:
        file.write(f"<!doctype html>{title}<ul>{items}</ul>".encode())
