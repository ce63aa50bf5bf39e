"""Stage `replay`: walk the run's day in event time and see what the store would have served.

Suffixes: R lookups.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from pipeline.mixing.canonical import partitions
from pipeline.run.errors import ContractError
from pipeline.run.manifest import Manifest, Outcome, need_manifest, produce, write_json
from pipeline.run.paths import Run
from pipeline.run.window import day_begin_us
from pipeline.solaris.bulk_lookups import CHUNK, history_of, serve_to, shown_rows
from pipeline.solaris.coverage import Counted, best_age, shares
from pipeline.solaris.history import VectorHistory
from pipeline.solaris.publish import inputs_of
from pipeline.solaris.requests import Requests, partition_inputs, read_requests, taught_days
from pipeline.solaris.serving import NONE
from pipeline.solaris.sweeps import sample_parts, sweeps
from pipeline.solaris.vectors import shard_names

log = logging.getLogger(__name__)


def replay(run: Run, unit: str) -> Manifest:
    """Write coverage.json, and served.parquet for the impressions of the run's day.

    `ContractError` when the share of asked pairs that get a vector, exact or the user's, is
    under `solaris.coverage_floor`; nothing is published then.
    """
    day, taught, solaris = (run.config.day,), taught_days(run), run.config.solaris
    shown_parts = partitions(run, "impressions", day)

    def build(folder: Path) -> Outcome:
        history = history_of(run)
        asked = read_requests(run, day)
        coverage = {"asked": _asked_coverage(history, asked)}
        require_coverage(coverage["asked"], solaris.coverage_floor)
        shown = shown_rows(shown_parts)
        counted = serve_to(folder / "served.parquet", history, shown)
        coverage |= _shown_coverage(run, shown, counted)
        coverage["budget"] = _budget(run)
        if solaris.sweeps:
            some = read_requests(run, taught, sample_parts(len(asked.ad_F)))
            coverage |= {"sweeps": sweeps(some, solaris, day_us=day_begin_us(run.config.day))}
        write_json(folder / "coverage.json", coverage)
        return Outcome(rows=len(shown), figures=coverage)

    inputs = inputs_of(run) | partition_inputs(run, taught)
    inputs |= {f"shown/{part.surface}": part.manifest.fingerprint for part in shown_parts}
    inputs["predict"] = need_manifest(run.output("predict")).fingerprint
    return produce(
        run.output("replay"),
        stage="replay",
        inputs=inputs,
        settings=solaris,
        build=build,
    )


def require_coverage(asked: dict[str, Any], floor: float) -> None:
    """`ContractError` when the covered share of asked pairs is under the floor."""
    if asked["covered"] < floor:
        raise ContractError(
            f"replay: {asked['covered']:.4f} of {asked['count']} asked pairs are covered "
            f"(exact {asked['exact']:.4f}, user {asked['user']:.4f}), "
            f"solaris.coverage_floor is {floor}; raise solaris.vectors_per_request or lower it"
        )


def _asked_coverage(history: VectorHistory, asked: Requests) -> dict[str, Any]:
    """Shares of all finalists of the requests."""
    owner_R = asked.request_of_F
    user_R, ad_R, ts_us_R = asked.user_Q[owner_R], asked.ad_F, asked.ts_us_Q[owner_R]
    source_R = np.zeros(len(user_R), dtype=np.int8)
    age_s_R = np.zeros(len(user_R), dtype=np.float32)
    for begin in range(0, len(user_R), CHUNK):
        rows = slice(begin, begin + CHUNK)
        served = history.serve(user_R[rows], ad_R[rows], ts_us_R[rows], best_only=True)
        source_R[rows], age_s_R[rows] = served.source_B, best_age(served)
    return shares(source_R, age_s_R)


def _shown_coverage(run: Run, shown: pl.DataFrame, counted: Counted) -> dict[str, Any]:
    surface_R = shown["surface"].to_numpy()
    by_surface = {name: counted.shares(surface_R == name) for name in run.config.surfaces}
    pair = float((counted.pair_R != NONE).mean()) if len(shown) else 0.0
    return {"shown": counted.shares() | {"pair": pair}, "shown_by_surface": by_surface}


def _budget(run: Run) -> dict[str, Any]:
    """How the budget was spent: what predict allowed and chose, and what became of it."""
    predict = need_manifest(run.output("predict")).read_figures()
    refused = need_manifest(run.output("verify")).read_figures()["refused"]
    computed = sum(need_manifest(run.output("precompute", s)).rows for s in shard_names(run))
    return {
        "allowed": predict["budget"],
        "chosen": predict["chosen"],
        "dropped": predict["dropped"],
        "computed": computed,
        "refused": refused,
        "used": round(predict["chosen"] / max(predict["budget"], 1), 6),
    }
