"""Stage `evaluate`: score the held-out hours with challenger and champion, before any training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

from pipeline.evaluation.scoring import (
    Scores,
    candidate_folder,
    champion_folder,
    holdout,
    load,
    score,
)
from pipeline.evaluation.summary import summarise
from pipeline.evaluation.truth import with_truth
from pipeline.run.errors import DataError
from pipeline.run.manifest import Manifest, Outcome, need_manifest, produce, write_json
from pipeline.run.paths import Run


def evaluate(run: Run, unit: str = "") -> Manifest:
    """Publish predictions.parquet and metrics.json of the holdout (docs/architecture.md)."""
    inputs = {
        "mix": need_manifest(run.output("mix")).fingerprint,
        "pretrain": need_manifest(run.output("pretrain")).fingerprint,
    }
    champion = champion_folder(run)
    if champion is not None:
        inputs["champion"] = need_manifest(champion.parent).fingerprint
    config = run.config
    settings = [config.evaluation, config.surfaces, config.objectives, config.parent]

    def build(folder: Path) -> Outcome:
        predictions = predict(run)
        predictions.write_parquet(folder / "predictions.parquet")
        found = summarise(
            predictions,
            config.surfaces,
            tuple(o.name for o in config.objectives),
            config.evaluation.bootstrap_draws,
        )
        found["day"] = config.day
        found["champion"] = config.parent and {
            "day": config.parent.day,
            "folder": config.parent.folder,
        }
        write_json(folder / "metrics.json", found)
        return Outcome(rows=len(predictions), figures=_figures(found))

    return produce(
        run.output("evaluate"), stage="evaluate", inputs=inputs, settings=settings, build=build
    )


def predict(run: Run) -> pl.DataFrame:
    """The holdout's rows with labels, masks, and probabilities of challenger and champion."""
    loader = holdout(run)
    if not loader.num_rows:
        raise DataError(
            f"the holdout of {run.config.day} has no rows; raise window.holdout_hours or check "
            "that the day's last hours were delivered"
        )
    models = {"p_": load(candidate_folder(run))}
    champion = champion_folder(run)
    if champion is not None:
        models["c_"] = load(champion)
    scores = score(models, loader)
    return with_truth(run, frame_of(run, loader.columns, scores))


def frame_of(run: Run, columns: dict[str, np.ndarray], scores: Scores) -> pl.DataFrame:
    """Loader columns and scores as one frame, a row per scored row."""
    surfaces = pl.Series(run.config.surfaces)
    data: dict[str, object] = {
        "impression_id": columns["impression_id"],
        "user_id": columns["user_id"],
        "surface": surfaces.gather(pl.Series(columns["surface"])),
        "ts_us": columns["ts_us"],
        "history": scores.history_N,
    }
    for place, objective in enumerate(o.name for o in run.config.objectives):
        data[f"y_{objective}"] = columns[f"y_{objective}"].astype(np.int8)
        data[f"m_{objective}"] = columns[f"m_{objective}"].astype(bool)
        for prefix, p_NK in scores.by_model.items():
            data[prefix + objective] = p_NK[:, place]
    return pl.DataFrame(data)


def _figures(found: dict) -> dict[str, object]:
    return {
        f"ne/{objective}": cell["challenger"]["ne"]["value"]
        for objective, cell in found["overall"].items()
    }
