"""Probabilities of a selection's rows under saved models: the only place here that needs torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pipeline.run.errors import DataError
from pipeline.run.paths import Run, confined
from pipeline.run.progress import Progress

if TYPE_CHECKING:
    from model.batch import Batch
    from model.foundation import FoundationModel
    from pipeline.mixing.loader import Loader

SCORING_BATCH = 2_048


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Probabilities [N, K] of each model and the number of visible events [N], in loader order."""

    by_model: dict[str, NDArray[np.float64]]
    history_N: NDArray[np.int64]


def candidate_folder(run: Run) -> Path:
    """The snapshot that this run trained."""
    return run.output("pretrain") / "model"


def champion_folder(run: Run) -> Path | None:
    """The snapshot of the champion that the run started from; None when there was none."""
    if run.config.parent is None:
        return None
    return confined(run.home, run.config.parent.folder, "pretrain", "model")


def load(folder: Path) -> FoundationModel:
    """The model of a snapshot folder, in evaluation mode; `DataError` when it is missing."""
    from model.snapshot import load_snapshot

    if not folder.is_dir():
        raise DataError(f"model snapshot {folder} does not exist; restore it or run pretrain again")
    model = load_snapshot(folder)
    model.eval()
    return model


def holdout(run: Run) -> Loader:
    """The rows that the run scores and never trained on, in the mix's own order."""
    from pipeline.mixing.loader import Loader

    return Loader(run, "holdout", batch_size=SCORING_BATCH, order="none")


def score(
    models: Mapping[str, FoundationModel], loader: Loader, *, batches: int | None = None
) -> Scores:
    """Score the first `batches` batches (all when None) with every model in one pass."""
    from model.inference import forward_all

    wanted = loader.num_batches if batches is None else min(batches, loader.num_batches)
    parts: dict[str, list[NDArray[np.float64]]] = {name: [] for name in models}
    lengths: list[NDArray[np.int64]] = []

    def forward(batch: Batch) -> tuple[dict[str, NDArray[np.float64]], NDArray[np.int64]]:
        scored = {name: model(batch).logits_BK.double() for name, model in models.items()}
        return {name: x_BK.sigmoid().numpy() for name, x_BK in scored.items()}, visible(batch)

    with Progress("evaluate", wanted) as progress:
        for scored, history_B in forward_all(forward, islice(loader.batches(), wanted)):
            for name, p_BK in scored.items():
                parts[name].append(p_BK)
            lengths.append(history_B)
            progress.step()
    empty = np.zeros((0, 0))
    return Scores(
        by_model={n: np.concatenate(p) if p else empty for n, p in parts.items()},
        history_N=np.concatenate([np.zeros(0, np.int64), *lengths]),
    )


def visible(batch: Batch) -> NDArray[np.int64]:
    """Events of any type that each row sees [B]."""
    lengths = [events.lengths_B.numpy() for events in batch.events.values()]
    return np.sum([np.zeros(batch.num_rows, np.int64), *lengths], axis=0)
