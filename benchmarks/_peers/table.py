"""The section of docs/experiments.md that `benchmarks.peers --record` writes."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks._experiments import table
from benchmarks._peers.contestants import (
    ATTENTION,
    BATCH_SIZE,
    EMBEDDING,
    LAYERS,
    MLP,
    MODELS,
    OURS,
    Result,
)
from benchmarks._peers.verdict import Score, best_peer, gap
from pipeline.evaluation.intervals import Interval

# two cores: two threads of one rank, two ranks of a thread, or two trainings
TOGETHER, RANKS, APART = "together", "ranks", "apart"
Sides = Mapping[tuple[str, str], list[Result]]
Scores = Mapping[str, Mapping[str, Score]]
HEAD = ("set", "model", "by", "AUC", "GAUC", "NE", "rows/cpu s", "rows/s", "lr", "params", "MB")


def speed_ratio(found: Sides, model: str) -> float:
    """Our median rows a processor second over the fastest peer's."""
    rates = {by: _median(r.rate for r in found[by, m]) for by, m in found if m == model}
    return rates.pop(OURS) / max(rates.values())


def large_rates(found: Mapping[str, list[Result]]) -> dict[str, float]:
    """Rows a second of the large Kunlun on two cores: by threads, by ranks, and the better one.

    Beside them two trainings that know nothing of each other: what the cores have to give.
    """
    threads, ranks = (_median(r.wall_rate for r in found[how]) for how in (TOGETHER, RANKS))
    return {
        "kunlun_5m_rows_per_s": max(threads, ranks),
        "kunlun_5m_two_threads_rows_per_s": threads,
        "kunlun_5m_two_ranks_rows_per_s": ranks,
        "kunlun_5m_two_jobs_rows_per_s": 2 * _median(r.wall_rate for r in found[APART]),
        "kunlun_5m_rows_per_processor_s": _median(r.rate for r in found[APART]),
    }


def section(
    told: Mapping[str, Any],
    scores: Mapping[str, Scores],
    results: Mapping[str, Sides],
    references: Mapping[str, Interval],
    figures: Mapping[str, float],
) -> str:
    """Everything measured, as Markdown."""
    lines = [
        _line(name, model, by, score, results[name].get((by, model), []), told["rates"])
        for name, by_model in scores.items()
        for model, found in by_model.items()
        for by, score in found.items()
    ]
    ratios = [
        _compared(name, model, scores[name][model], sides)
        for name, sides in results.items()
        for model in MODELS
    ]
    head = ("set", "model", "our speed / fastest peer's", "our AUC - best peer's", "best peer")
    parts = ("## Open-source libraries on the same rows", _head(told), table(HEAD, lines))
    return "\n\n".join([*parts, table(head, ratios), _closing(told, references, figures)])


def _compared(name: str, model: str, found: Mapping[str, Score], sides: Sides) -> list[str]:
    best = best_peer(found)
    ratio = f"{speed_ratio(sides, model):.2f}"
    return [name, model, ratio, _spread(gap(found[OURS], found[best])), best]


def _head(told: Mapping[str, Any]) -> str:
    rows = ", ".join(f"{name} {count:,}" for name, count in told["rows"].items())
    return (
        f"`python -m benchmarks.peers{' --quick' if told['quick'] else ''}`: "
        f"{', '.join(told['versions'])}; one thread each, batches of {BATCH_SIZE}, one pass in "
        f"time order over the training rows ({rows}), {told['seeds']} seed(s); speeds and memory "
        f"are medians. Embeddings of {EMBEDDING}, {LAYERS} cross layers, {LAYERS} hidden layers "
        f"of {MLP}, DIN's unit {ATTENTION}; ours has its heads and its compressor on top. Numbers "
        "are ids (16 bins) for torch-rechub's DIN, which takes none; event times are read by ours "
        "alone. AUC with its interval over users; AUC and NE of planted rows are against the "
        "planted probability."
    )


def _line(
    name: str,
    model: str,
    by: str,
    score: Score,
    results: Sequence[Result],
    rates: Mapping[str, float],
) -> list[str]:
    auc = f"{score.auc.value:.4f} [{score.auc.low:.4f}, {score.auc.high:.4f}]"
    metrics = [name, model, by, auc, f"{score.gauc:.4f}", f"{score.ne:.4f}"]
    if not results:
        return [*metrics, *[""] * (len(HEAD) - len(metrics))]
    speeds = [_median(r.rate for r in results), _median(r.wall_rate for r in results)]
    sizes = [results[0].parameters, _median(r.memory_mb for r in results)]
    rate = f"{rates[f'{by}/{model}']:g}"
    return [*metrics, *(f"{v:,.0f}" for v in speeds), rate, *(f"{v:,.0f}" for v in sizes)]


def _closing(
    told: Mapping[str, Any], references: Mapping[str, Interval], figures: Mapping[str, float]
) -> str:
    gains = "; ".join(f"{name} {_spread(found)}" for name, found in references.items())
    return (
        f"Kunlun's AUC above a simple reference: {gains}. "
        f"A Kunlun of {told['large_parameters'] / 1e6:.1f}M parameters (4 layers, width 64, 50 "
        f"events; its tables included) trains on two cores "
        f"{figures['kunlun_5m_two_threads_rows_per_s']:,.0f} rows a second with two threads and "
        f"{figures['kunlun_5m_two_ranks_rows_per_s']:,.0f} on two ranks, which share batches of "
        f"{2 * BATCH_SIZE:,}; two trainings side by side make "
        f"{figures['kunlun_5m_two_jobs_rows_per_s']:,.0f}. One thread makes "
        f"{figures['kunlun_5m_rows_per_processor_s']:,.0f} rows a processor second."
    )


def _spread(found: Interval) -> str:
    return f"{found.value:+.4f} [{found.low:+.4f}, {found.high:+.4f}]"


def _median(values: Iterable[float]) -> float:
    return statistics.median(values)
