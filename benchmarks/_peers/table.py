"""The section of docs/experiments.md that a full run of `benchmarks.peers` writes."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from benchmarks._peers.contestants import (
    ATTENTION,
    BATCH_SIZE,
    EMBEDDING,
    KUNLUN,
    LAYERS,
    MLP,
    MODELS,
    OURS,
    Result,
)
from benchmarks._peers.verdict import Score, best_peer, gap
from pipeline.evaluation.intervals import Interval
from pipeline.run.paths import REPOSITORY

PAGE = REPOSITORY / "docs" / "experiments.md"
BEGIN, END = "<!-- benchmarks.peers -->", "<!-- end of benchmarks.peers -->"
TITLE = "# Experiments\n\nEach section is written by the command that it names.\n"
Sides = Mapping[tuple[str, str], list[Result]]


def speed_ratio(found: Sides, model: str) -> float:
    """Our median rows a processor second over the fastest peer's."""
    rates = {by: _median(r.rate for r in found[by, m]) for by, m in found if m == model}
    return rates.pop(OURS) / max(rates.values())


def section(
    told: Mapping[str, Any],
    scores: Mapping[str, Mapping[str, Mapping[str, Score]]],
    speeds: Mapping[str, Sides],
    costs: Mapping[tuple[str, str, str], list[Result]],
    references: Mapping[str, Interval],
    figures: Mapping[str, float],
) -> str:
    """Everything measured, as Markdown."""
    lines = ["## Open-source libraries on the same rows", "", *_head(told), ""]
    lines += ["| set | model | by | AUC | GAUC | NE | rate | parameters | MB |", "|---" * 9 + "|"]
    for name, by_model in scores.items():
        for model, found in by_model.items():
            for by, score in found.items():
                results = costs.get((name, by, model))
                rate = told["rates"].get(f"{by}/{model}", "")
                lines.append(_scored(name, model, by, score, results, rate))
    lines += [
        "",
        "Rows a processor second of the training loop, medians, and a second of wall time:",
    ]
    lines += [
        "",
        "| set | model | by | rows a processor second | rows a second |",
        "|---" * 5 + "|",
    ]
    for name, sides in speeds.items():
        for (by, model), timed in sides.items():
            rates = _median(r.rate for r in timed), _median(r.wall_rate for r in timed)
            lines.append(f"| {name} | {model} | {by} | {rates[0]:,.0f} | {rates[1]:,.0f} |")
    lines += [
        "",
        "| set | model | our speed over the fastest peer's | our AUC minus the best peer's |",
    ]
    lines.append("|---" * 4 + "|")
    for name, sides in speeds.items():
        for model in MODELS:
            found = scores[name][model]
            best = best_peer(found)
            difference = _spread(gap(found[OURS], found[best]))
            ratio = speed_ratio(sides, model)
            lines.append(f"| {name} | {model} | {ratio:.2f} | {difference} ({best}) |")
    lines += ["", *_closing(told, references, figures)]
    return "\n".join(lines) + "\n"


def write(text: str) -> None:
    """Put the section into docs/experiments.md, in the place of an older one."""
    page = PAGE.read_text() if PAGE.is_file() else TITLE
    block = f"{BEGIN}\n{text}{END}\n"
    if BEGIN in page:
        before, _, rest = page.partition(BEGIN)
        page = before + block + rest.partition(f"{END}\n")[2]
    else:
        page = page.rstrip("\n") + "\n\n" + block
    PAGE.write_text(page)


def _head(told: Mapping[str, Any]) -> list[str]:
    rows = ", ".join(f"{name} {count:,}" for name, count in told["rows"].items())
    return [
        f"`python -m benchmarks.peers{' --quick' if told['quick'] else ''}`: "
        f"{', '.join(told['versions'])}, one thread each, batches of {BATCH_SIZE}, one pass in "
        f"time order over the training rows ({rows}), {told['seeds']} seed(s), AUC with its "
        f"interval over users. Embeddings of {EMBEDDING}, {LAYERS} cross layers, {LAYERS} hidden "
        f"layers of {MLP}, DIN's unit {ATTENTION}; ours has its heads on top. Speed: over the last "
        f"{told['timed']:,} rows. "
        "AUC and NE of planted rows are against the planted probability.",
    ]


def _scored(
    name: str, model: str, by: str, score: Score, results: list[Result] | None, rate: object
) -> str:
    cost = " | "
    if results:
        cost = f"{results[0].parameters:,} | {_median(r.memory_mb for r in results):,.0f}"
    found = score.auc
    return (
        f"| {name} | {model} | {by} | {found.value:.4f} [{found.low:.4f}, {found.high:.4f}] | "
        f"{score.gauc:.4f} | {score.ne:.4f} | {rate} | {cost} |"
    )


def _closing(
    told: Mapping[str, Any], references: Mapping[str, Interval], figures: Mapping[str, float]
) -> list[str]:
    gains = "; ".join(f"{name} {_spread(found)}" for name, found in references.items())
    return [
        f"Kunlun's AUC above a simple reference: {gains}. "
        f"A Kunlun of {told['large_parameters'] / 1e6:.1f}M parameters (with tables; 4 layers, "
        f"width 64, 50 events) trains {figures['kunlun_5m_rows_per_s']:,.0f} rows a second in one "
        f"process with two threads, {told['large_processor_rate']:,.0f} a processor second.",
    ]


def _spread(found: Interval) -> str:
    return f"{found.value:+.4f} [{found.low:+.4f}, {found.high:+.4f}]"


def _median(values: Iterable[float]) -> float:
    return statistics.median(values)


__all__ = ["KUNLUN", "section", "speed_ratio", "write"]
