"""Stages `evaluate_students` and `promote_students`: the transfer table, and who serves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl

from pipeline.evaluation.lineage import earlier_runs, read_json
from pipeline.evaluation.transfer_ratio import arm_rows
from pipeline.evaluation.truth import TRUE_PREFIX, with_truth
from pipeline.run.config import EvaluationConfig
from pipeline.run.manifest import (
    Manifest,
    Outcome,
    need_manifest,
    produce,
    read_manifest,
    write_json,
)
from pipeline.run.paths import Run


def evaluate_students(run: Run, unit: str = "") -> Manifest:
    """Publish table.json: per surface, objective and arm NE, AUC, calibration, gain and TR.

    `rows` is measured against labels, `truth` against the planted probability where there is one.
    """
    config = run.config
    inputs = {
        f"transfer/{s}": need_manifest(run.output("transfer", s)).fingerprint
        for s in config.surfaces
    }
    settings = [config.evaluation, config.surfaces, config.objectives]

    def build(folder: Path) -> Outcome:
        table: dict[str, Any] = {"rows": [], "truth": []}
        for surface in config.surfaces:
            frame = pl.read_parquet(run.output("transfer", surface) / "predictions.parquet")
            for kind, rows in surface_rows(run, frame).items():
                table[kind] += [{"surface": surface} | row for row in rows]
        write_json(folder / "table.json", table)
        return Outcome(rows=len(table["rows"]))

    return produce(
        run.output("evaluate_students"),
        stage="evaluate_students",
        inputs=inputs,
        settings=settings,
        build=build,
    )


def surface_rows(run: Run, frame: pl.DataFrame) -> dict[str, list[dict[str, Any]]]:
    """The table's rows of one surface, against labels (`rows`) and the truth (`truth`)."""
    draws = run.config.evaluation.bootstrap_draws
    known = with_truth(run, frame)
    found: dict[str, list[dict[str, Any]]] = {"rows": [], "truth": []}
    for objective in (o.name for o in run.config.objectives if f"y_{o.name}" in frame.columns):
        found["rows"] += arm_rows(known, objective, draws=draws)
        true = TRUE_PREFIX + objective
        if true in known.columns:
            found["truth"] += arm_rows(known, objective, draws=draws, label=true)
    return found


def promote_students(run: Run, unit: str = "") -> Manifest:
    """Publish decision.json: per surface, whether today's student serves, with the reasons."""
    config = run.config
    inputs = {"evaluate_students": need_manifest(run.output("evaluate_students")).fingerprint}
    before = _decided_before(run)
    if before:
        inputs["before"] = need_manifest(before.output("promote_students")).fingerprint
    settings = [config.evaluation, config.promote, config.surfaces, config.transfer.serves]

    def build(folder: Path) -> Outcome:
        table = read_json(run, "evaluate_students", "table.json")
        known = read_json(before, "promote_students", "decision.json") if before else {}
        champions = {s: d["champion"] for s, d in known.get("surfaces", {}).items()}
        decisions = {s: decide(run, s, table["rows"], champions.get(s)) for s in config.surfaces}
        write_json(folder / "decision.json", {"surfaces": decisions})
        return Outcome(
            rows=len(decisions), figures={s: d["decision"] for s, d in decisions.items()}
        )

    return produce(
        run.output("promote_students"),
        stage="promote_students",
        inputs=inputs,
        settings=settings,
        build=build,
    )


def decide(
    run: Run, surface: str, rows: list[dict[str, Any]], champion: dict[str, Any] | None
) -> dict[str, Any]:
    """The decision of one surface; `champion` is who serves until now."""
    config, arm = run.config.evaluation, run.config.transfer.serves
    mine = {r["arm"]: r for r in rows if _is(r, surface, config.primary_objective)}
    failed = _failures(arm, mine, champion, config)
    mode = run.config.promote
    if mode == "never":
        verdict, reasons = "skipped", ["promote = never", *failed]
    elif mode == "force" and arm in mine:
        verdict, reasons = "forced", ["promote = force", *failed]
    elif failed:
        verdict, reasons = "kept", failed
    else:
        verdict, reasons = "promoted", [_praise(mine[arm], champion)]
    won = verdict in {"promoted", "forced"}
    return {
        "decision": verdict,
        "reasons": reasons,
        "arm": arm,
        "champion": _this(run, surface, mine[arm]) if won else champion,
    }


def _failures(
    arm: str,
    mine: dict[str, dict[str, Any]],
    champion: dict[str, Any] | None,
    config: EvaluationConfig,
) -> list[str]:
    if arm not in mine:
        return [f"arm {arm} was not trained; name it in transfer.arms too"]
    row, failed = mine[arm], []
    gain, calibration = row["gain"], row["calibration"]
    if not gain or gain[0] is None or gain[0] <= 0:
        failed.append(f"no better than the student without transfer: gain {_spread(gain)} NE")
    if calibration[0] is None or not (
        calibration[2] >= config.calibration_low and calibration[1] <= config.calibration_high
    ):
        failed.append(
            f"calibration {_spread(calibration)} outside of "
            f"[{config.calibration_low}, {config.calibration_high}]"
        )
    if champion and gain and _surely_worse(gain, champion["gain"], row, config):
        failed.append(
            f"gain over no transfer {_spread(gain)} NE falls behind the champion's "
            f"{_spread(champion['gain'])} of {champion['day']} by more than "
            f"{config.max_worse_pct} %"
        )
    return failed


def _surely_worse(
    gain: list[Any], before: list[Any], row: dict[str, Any], config: EvaluationConfig
) -> bool:
    """Days differ in difficulty, so gains over no transfer are compared, not NE itself."""
    if None in (gain[0], gain[2], before[0], before[1], row["ne"][0]):
        return False
    rail = config.max_worse_pct / 100 * row["ne"][0]
    return bool(before[0] - gain[0] > rail and gain[2] < before[1])


def _praise(row: dict[str, Any], champion: dict[str, Any] | None) -> str:
    text = (
        f"gain over no transfer {_spread(row['gain'])} NE, calibration {row['calibration'][0]:.3f}"
    )
    before = f"; champion of {champion['day']}: {_spread(champion['gain'])}" if champion else ""
    return text + (before or "; first of its lineage")


def _this(run: Run, surface: str, row: dict[str, Any]) -> dict[str, Any]:
    folder = run.output("transfer", surface)
    return {
        "day": run.config.day,
        "folder": str(folder.relative_to(run.home)),
        "arm": run.config.transfer.serves,
        "fingerprint": need_manifest(folder).fingerprint,
        "gain": row["gain"],
        "ne": row["ne"],
    }


def _decided_before(run: Run) -> Run | None:
    for earlier in earlier_runs(run):
        if read_manifest(earlier.output("promote_students"), missing_ok=True):
            return earlier
    return None


def _is(row: dict[str, Any], surface: str, objective: str) -> bool:
    return bool(row["surface"] == surface and row["objective"] == objective)


def _spread(found: list[float | None] | None) -> str:
    value, low, high = ("?" if v is None else f"{v:+.4f}" for v in found or (None,) * 3)
    return f"{value} [{low}, {high}]"
