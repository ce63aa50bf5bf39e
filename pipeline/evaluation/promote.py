"""Stage `promote`: does the challenger become champion? Every decision with its reasons."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from pipeline.evaluation import gates
from pipeline.evaluation.gates import Gate
from pipeline.evaluation.scoring import SCORING_BATCH, candidate_folder, holdout, load, score
from pipeline.run.codec import to_dict
from pipeline.run.config import RunConfig
from pipeline.run.errors import DataError
from pipeline.run.manifest import Manifest, Outcome, need_manifest, produce, write_json
from pipeline.run.paths import Run
from pipeline.run.window import window_of

CONTRACTS = ("contracts", "mixture_contract")
# Another batch shape or thread count may change the last bits of a float32 sum.
GOLDEN_TOLERANCE = 1e-5


def promote(run: Run, unit: str = "") -> Manifest:
    """Publish decision.json: what was decided, why, and who is champion after it."""
    stages = ("pretrain", "evaluate", *(c for c in CONTRACTS if run.output(c).is_dir()))
    inputs = {stage: need_manifest(run.output(stage)).fingerprint for stage in stages}
    settings = [run.config.evaluation, run.config.promote, run.config.parent]

    def build(folder: Path) -> Outcome:
        metrics = json.loads((run.output("evaluate") / "metrics.json").read_text())
        results = {name: _result(run.output(name) / "result.json") for name in CONTRACTS}
        judged = [*judge(metrics, results, run.config), golden_batch(run)]
        decision = decide(run, judged, inputs["pretrain"])
        write_json(folder / "decision.json", decision)
        return Outcome(rows=len(judged), figures={"decision": decision["decision"]})

    return produce(
        run.output("promote"), stage="promote", inputs=inputs, settings=settings, build=build
    )


def judge(
    metrics: dict[str, Any], results: dict[str, dict[str, Any] | None], config: RunConfig
) -> list[Gate]:
    """All gates that need no model."""
    return [
        gates.enough_positives(metrics, config.evaluation),
        gates.better_than_champion(metrics, config.evaluation),
        gates.no_cell_worse(metrics, config.evaluation),
        gates.calibrated(metrics, config.evaluation),
        gates.contracts_passed(results),
    ]


def golden_batch(run: Run) -> Gate:
    """The candidate loads from its files and gives the first batch the scores of `evaluate`."""
    name = "golden_batch"
    try:
        model = load(candidate_folder(run))
        scores = score({"p_": model}, holdout(run), batches=1)
    except (DataError, ValueError, KeyError, RuntimeError) as error:
        return Gate(gate=name, passed=False, reason=f"the candidate does not load: {error}")
    return same_scores(run, scores.by_model["p_"])


def same_scores(run: Run, p_NK: np.ndarray) -> Gate:
    """The gate's verdict on fresh scores [N, K] of the first N rows."""
    columns = [f"p_{o.name}" for o in run.config.objectives]
    seen = pl.read_parquet(
        run.output("evaluate") / "predictions.parquet", columns=columns, n_rows=SCORING_BATCH
    ).to_numpy()
    if seen.shape != p_NK.shape:
        reason = f"{p_NK.shape} scores where evaluate saw {seen.shape}"
        return Gate(gate="golden_batch", passed=False, reason=reason)
    apart = float(np.abs(seen - p_NK).max())
    return Gate(
        gate="golden_batch",
        passed=bool(apart <= GOLDEN_TOLERANCE),
        reason=f"{len(seen)} rows scored again, at most {apart:.1e} apart from evaluate",
    )


def decide(run: Run, judged: list[Gate], fingerprint: str) -> dict[str, Any]:
    """The decision as JSON; `champion` is this run when promoted, else the parent."""
    verdict, reasons = _verdict(run.config.promote, judged)
    won = verdict in {"promoted", "forced"}
    return {
        "decision": verdict,
        "reasons": reasons,
        "gates": [dataclasses.asdict(g) for g in judged],
        "champion": this_run(run, fingerprint) if won else to_dict(run.config.parent),
    }


def this_run(run: Run, fingerprint: str) -> dict[str, Any]:
    """This run as a champion: the fields of `pipeline.run.config.Parent`."""
    return {
        "day": run.config.day,
        "folder": str(run.folder.relative_to(run.home)),
        "cut_us": window_of(run.config).cut,
        "fingerprint": fingerprint,
    }


def _verdict(mode: str, judged: list[Gate]) -> tuple[str, list[str]]:
    failed = [f"{g.gate}: {g.reason}" for g in judged if not g.passed]
    usable = all(g.passed for g in judged if g.gate == "golden_batch")
    if mode == "never":
        return "skipped", ["promote = never", *failed]
    if mode == "force" and usable:
        return "forced", ["promote = force", *failed]
    if failed:
        return "kept", failed
    return "promoted", [f"{g.gate}: {g.reason}" for g in judged]


def _result(path: Path) -> dict[str, Any] | None:
    return json.loads(path.read_text()) if path.is_file() else None
