"""torch-rechub's side: its DCNv2 and DIN in its CTRTrainer.

Its DIN takes no numbers: they become ids, sixteenths of the training rows.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn
from torch_rechub.basic.features import DenseFeature, SequenceFeature, SparseFeature
from torch_rechub.models.ranking import DIN, DCNv2
from torch_rechub.trainers import CTRTrainer

from benchmarks._peers.side import (
    LABEL,
    Batches,
    Contest,
    Meta,
    Rows,
    Stopwatch,
    Trained,
    play,
    seeded,
)

BINS = 16


class Pairs(Batches):
    """Batches as the trainer reads them: inputs and label."""

    def __iter__(self) -> Iterator[tuple[dict[str, Tensor], Tensor]]:  # type: ignore[override]
        for batch in super().__iter__():
            label = batch.pop(LABEL)
            yield batch, label


def train(contest: Contest, meta: Meta, rows: Rows) -> Trained:
    """One pass of `CTRTrainer.fit`."""
    seeded(contest)
    model = _dcnv2(contest, meta) if contest.model == "dcnv2" else _din(contest, meta)
    edges = [np.unique(np.quantile(c, np.arange(1, BINS) / BINS)) for c in rows.dense.T]

    def pairs(some: Rows) -> Pairs:
        columns = meta.columns(some)
        if contest.model == "din":
            for name, edge in zip(meta.dense, edges, strict=True):
                columns[name] = np.searchsorted(edge, columns[name], side="right")
        return Pairs(columns, contest.batch_size)

    batches = pairs(rows)
    with tempfile.TemporaryDirectory() as folder:
        trainer = CTRTrainer(
            model, optimizer_params={"lr": contest.rate}, n_epoch=1, model_path=folder
        )
        with Stopwatch() as watch:
            trainer.fit(batches)

    def predict(scored: Rows) -> np.ndarray:
        model.eval()
        with torch.no_grad():
            return np.concatenate([model(x).numpy() for x, _ in pairs(scored)])

    return Trained.of(watch, model, predict)


def _dcnv2(contest: Contest, meta: Meta) -> nn.Module:
    sparse, sequences = _features(contest, meta, "mean")
    features = [sparse[name] for name, _ in meta.sparse]
    features += [*sequences, *(DenseFeature(name) for name in meta.dense)]
    hidden = {"dims": [contest.mlp_width] * contest.layers}
    return DCNv2(features, contest.layers, hidden, use_low_rank_mixture=False)


def _din(contest: Contest, meta: Meta) -> nn.Module:
    sparse, sequences = _features(contest, meta, "concat")
    targets = [sparse.pop(name) for name in meta.targets]
    others = list(sparse.values())
    others += [SparseFeature(name, BINS, contest.embedding_dim) for name in meta.dense]
    hidden = {"dims": [contest.mlp_width] * contest.layers}
    return DIN(others, sequences, targets, hidden, {"dims": [contest.attention_width]})


def _features(
    contest: Contest, meta: Meta, pooling: str
) -> tuple[dict[str, SparseFeature], list[SequenceFeature]]:
    """Features and sequences; the first feature of a table owns it, the others share it."""
    owner: dict[str, str] = {}
    sparse = {}
    for name, table in [*meta.sparse, *((n, t) for n, (t, _) in meta.constants.items())]:
        first = owner.setdefault(table, name)
        shared = None if first == name else first
        sparse[name] = SparseFeature(name, meta.tables[table], contest.embedding_dim, shared)
    sequences = [
        SequenceFeature(
            event,
            meta.tables[table],
            contest.embedding_dim,
            pooling=pooling,
            shared_with=owner[table],
            padding_idx=0,
        )
        for event, (_, table, _) in zip(meta.events, meta.history, strict=True)
    ]
    return sparse, sequences


if __name__ == "__main__":
    sys.exit(play(sys.argv[1:], train))
