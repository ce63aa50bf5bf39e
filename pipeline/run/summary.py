"""The summary that ends `make daily`: read from the run folder's JSON files, whatever is there."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pipeline.run.paths import Run
from pipeline.run.runs import CHAIN, units_of


def summary(run: Run, seconds: Mapping[str, float]) -> str:
    """Decision, NE per surface and objective, transfer table, coverage and timings."""
    blocks = (
        _decision(run),
        _table("normalized entropy", _quality(run)),
        _table("transfer", _transfer(run)),
        _coverage(run),
        _timings(run, seconds),
    )
    return "\n\n".join(block for block in blocks if block)


def _read(run: Run, stage: str, name: str) -> Any:
    path = run.output(stage) / name
    return json.loads(path.read_text()) if path.is_file() else None


def _decision(run: Run) -> str:
    found = _read(run, "promote", "decision.json")
    if not found:
        return ""
    reasons = found.get("reasons") or found.get("reason") or []
    text = reasons if isinstance(reasons, str) else "; ".join(str(r) for r in reasons)
    return f"promotion: {found.get('decision', '?')}" + (f" ({text})" if text else "")


def _quality(run: Run) -> list[dict[str, Any]]:
    found = _read(run, "evaluate", "metrics.json")
    wanted = ("surface", "objective", "ne", "champion_ne", "auc", "calibration", "rows")
    return [{k: row[k] for k in wanted if k in row} for row in rows_of(found)]


def _transfer(run: Run) -> list[dict[str, Any]]:
    found = _read(run, "evaluate_students", "table.json")
    wanted = ("surface", "objective", "arm", "ne", "auc", "calibration", "tr")
    return [{k: row[k] for k in wanted if k in row} for row in rows_of(found)]


def rows_of(value: Any) -> list[dict[str, Any]]:
    """The list of rows in a JSON file: the file itself, or the first list of objects in it."""
    for found in _lists(value):
        if found and all(isinstance(row, dict) for row in found):
            return found
    return []


def _lists(value: Any) -> Iterator[list[Any]]:
    if isinstance(value, list):
        yield value
    elif isinstance(value, dict):
        for key in ("rows", *value):
            if isinstance(value.get(key), (list, dict)):
                yield from _lists(value[key])


def _coverage(run: Run) -> str:
    found = _read(run, "replay", "coverage.json")
    if not isinstance(found, dict):
        return ""
    plain = {k: v for k, v in found.items() if isinstance(v, (int, float))}
    return "coverage: " + ", ".join(f"{k} {_text(v)}" for k, v in plain.items()) if plain else ""


def _timings(run: Run, seconds: Mapping[str, float]) -> str:
    """Seconds per stage: the tasks' when they just ran, else what the manifests say."""
    if not seconds:
        seconds = dict(_manifest_seconds(run))
    longest = sorted(seconds.items(), key=lambda item: -item[1])[:8]
    total = sum(seconds.values())
    parts = ", ".join(f"{name.split('.')[-1]} {value:.1f}" for name, value in longest)
    return f"seconds: {parts}; all stages {total:.0f}" if parts else ""


def _manifest_seconds(run: Run) -> Iterator[tuple[str, float]]:
    for stage in dict.fromkeys(s for stages in CHAIN.values() for s in stages):
        for unit in units_of(run, stage):
            path = run.output(stage, unit) / "manifest.json"
            if path.is_file():
                yield f"{stage}[{unit}]" if unit else stage, json.loads(path.read_text())["seconds"]


def _table(title: str, rows: Iterable[Mapping[str, Any]]) -> str:
    rows = list(rows)
    if not rows:
        return ""
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [names, *([_text(row.get(name, "")) for name in names] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(names))]
    lines = ("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) for line in cells)
    return "\n".join([title, *(line.rstrip() for line in lines)])


def _text(value: Any) -> str:
    if isinstance(value, (list, tuple)):  # an interval
        return "[" + ", ".join(_text(v) for v in value) + "]"
    if value is None:
        return "-"
    return f"{value:.4f}" if isinstance(value, float) else str(value)
