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
    return "\n  ".join([f"promotion: {found['decision']}", *found.get("reasons", [])])


def _quality(run: Run) -> list[dict[str, Any]]:
    wanted = ("surface", "objective", "ne", "champion_ne", "auc", "calibration", "closed")
    return _rows(_read(run, "evaluate", "metrics.json"), wanted)


def _transfer(run: Run) -> list[dict[str, Any]]:
    wanted = ("surface", "objective", "arm", "ne", "gain", "tr")
    return _rows(_read(run, "evaluate_students", "table.json"), wanted)


def _rows(found: Any, wanted: tuple[str, ...]) -> list[dict[str, Any]]:
    """The wanted columns of a file's `rows`, as far as they are there."""
    rows = found.get("rows", []) if isinstance(found, dict) else []
    return [{name: row[name] for name in wanted if name in row} for row in rows]


def _coverage(run: Run) -> str:
    asked = (_read(run, "replay", "coverage.json") or {}).get("asked")
    if not asked:
        return ""
    parts = ", ".join(f"{n} {asked[n]:.1%}" for n in ("exact", "user", "none") if n in asked)
    return f"coverage: {asked['covered']:.1%} of {asked['count']} asked pairs ({parts})"


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
    if isinstance(value, (list, tuple)) and len(value) == 3:  # value, low, high
        return f"{_text(value[0])} [{_text(value[1])}, {_text(value[2])}]"
    if value is None:
        return "-"
    return f"{value:.4f}" if isinstance(value, float) else str(value)
