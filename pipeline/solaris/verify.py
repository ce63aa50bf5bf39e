"""Stage `verify`: refuse vectors that must not be served, and count them by reason.

Hard rules: no broken codes, no zero vector, finite logits, the epoch in force, and a model that
was cut before the vector's time. Light check: a ridge regression from codes to logits, fitted
on the epoch's logged representations, must predict a vector's logit about as well as theirs
(after the verifier of arXiv 2604.12110; the tolerance is ours). Suffixes: N vectors, d code
width, K objectives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from pipeline.loopfm.compress import is_broken, unpack
from pipeline.loopfm.epoch import Epoch, epoch_in_force
from pipeline.loopfm.lake import read_representations, representation_inputs
from pipeline.mixing.frames import write_frame
from pipeline.run.manifest import Manifest, Outcome, need_manifest, produce, write_json
from pipeline.run.paths import Run
from pipeline.solaris.vectors import SHARD_FILE, VectorRows, read_vectors, shard_names

REASONS = (
    "broken codes",
    "zero vector",
    "logit not finite",
    "wrong epoch",
    "future model",
    "logit not explained",
    "batch out of tolerance",
)
FIT_ROWS = 50_000
ROW_TOLERANCE = 3.0  # x the largest residual of the rows that the check was fitted on
BATCH_TOLERANCE = 2.0  # x their root mean square


@dataclass(frozen=True, kw_only=True)
class LightCheck:
    """Logits as a linear function of codes; `largest_K` and `rms_K` of the fit's residuals."""

    weights_DK: np.ndarray
    largest_K: np.ndarray
    rms_K: np.ndarray

    def residuals(
        self, z_Nd: npt.NDArray[np.generic], logits_NK: npt.NDArray[np.float32]
    ) -> np.ndarray:
        """Distance (N, K) of logits from what their codes explain."""
        return np.abs(logits_NK - _with_one(z_Nd) @ self.weights_DK)


def verify(run: Run, unit: str) -> Manifest:
    """Write refused.parquet (shard, row, reason) and result.json (counts by reason and shard)."""
    epoch = epoch_in_force(run)
    shards = {s: run.output("precompute", s) for s in shard_names(run)}

    def build(folder: Path) -> Outcome:
        check = fit_check(*_logged(run))
        refused, counts = [], {}
        for shard, output in shards.items():
            rows = read_vectors(output / SHARD_FILE, run.config.objectives)
            reasons = refusals(rows, epoch, check)
            refused.append(_refused_frame(shard, reasons))
            counts[shard] = {"vectors": len(rows), **_count(reasons)}
        frame = pl.concat(refused)
        write_frame(folder / "refused.parquet", frame)
        result = {"shards": counts, "refused": len(frame), "epoch": epoch.id}
        write_json(folder / "result.json", result)
        return Outcome(rows=sum(c["vectors"] for c in counts.values()), figures=result)

    inputs = {f"precompute/{s}": need_manifest(output).fingerprint for s, output in shards.items()}
    return produce(
        run.output("verify"),
        stage="verify",
        inputs=inputs | representation_inputs(run),
        settings=(epoch.id, epoch.fm_cut_us),
        build=build,
    )


def fit_check(z_Nd: npt.NDArray[np.generic], logits_NK: npt.NDArray[np.float32]) -> LightCheck:
    """Ridge regression on at most `FIT_ROWS` evenly spaced rows."""
    step = max(1, len(z_Nd) // FIT_ROWS)
    design_ND, target_NK = _with_one(z_Nd[::step]), logits_NK[::step].astype(np.float64)
    ridge_DD = 1e-3 * len(design_ND) * np.eye(design_ND.shape[1])
    weights_DK = np.linalg.solve(design_ND.T @ design_ND + ridge_DD, design_ND.T @ target_NK)
    residual_NK = np.abs(target_NK - design_ND @ weights_DK)
    return LightCheck(
        weights_DK=weights_DK,
        largest_K=residual_NK.max(axis=0, initial=0.0),
        rms_K=np.sqrt(np.square(residual_NK).mean(axis=0)),
    )


def refusals(rows: VectorRows, epoch: Epoch, check: LightCheck) -> npt.NDArray[np.int8]:
    """Per vector the index of the first rule of `REASONS` that it breaks, -1 for none."""
    finite_N = np.isfinite(rows.logits_NK).all(axis=1)
    logits_NK = np.nan_to_num(rows.logits_NK, posinf=0.0, neginf=0.0)
    distance_NK = check.residuals(np.nan_to_num(rows.z_Nd), logits_NK)
    rules: list[Callable[[], Any]] = [
        lambda: is_broken(rows.z_Nd),
        lambda: ~rows.z_Nd.any(axis=1),
        lambda: ~finite_N,
        lambda: rows.epoch_N != epoch.id,
        lambda: rows.fm_cut_us_N > rows.at_us_N,
        lambda: (distance_NK > ROW_TOLERANCE * check.largest_K).any(axis=1),
    ]
    reason_N = np.full(len(rows), -1, dtype=np.int8)
    for index, rule in enumerate(rules):
        reason_N[(reason_N < 0) & rule()] = index
    good_N = reason_N < 0
    if good_N.any():
        rms_K = np.sqrt(np.square(distance_NK[good_N]).mean(axis=0))
        if (rms_K > BATCH_TOLERANCE * check.rms_K + 1e-9).any():
            reason_N[good_N] = len(rules)
    return reason_N


def _with_one(z_Nd: npt.NDArray[np.generic]) -> np.ndarray:
    return np.concatenate([unpack(z_Nd).astype(np.float64), np.ones((len(z_Nd), 1))], axis=1)


def _logged(run: Run) -> tuple[npt.NDArray[np.generic], npt.NDArray[np.float32]]:
    logged = read_representations(run)
    return logged.z_Nd, logged.logits_NK


def _refused_frame(shard: str, reason_N: npt.NDArray[np.int8]) -> pl.DataFrame:
    row = np.flatnonzero(reason_N >= 0)
    return pl.DataFrame(
        {
            "shard": pl.Series([shard] * len(row), dtype=pl.String),
            "row": row,
            "reason": pl.Series([REASONS[i] for i in reason_N[row]], dtype=pl.String),
        }
    )


def _count(reason_N: npt.NDArray[np.int8]) -> dict[str, int]:
    return {name: int((reason_N == i).sum()) for i, name in enumerate(REASONS)}
