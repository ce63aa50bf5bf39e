"""torch-rechub's side: its DCNv2 and DIN, its Parquet loader, its CTRTrainer."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch.utils.data import DataLoader
from torch_rechub.basic.features import DenseFeature, SequenceFeature, SparseFeature
from torch_rechub.data.dataset import ParquetIterableDataset
from torch_rechub.models.ranking import DIN, DCNv2
from torch_rechub.trainers import CTRTrainer

from benchmarks._peers.side import Contest, Meta, Rows, Stopwatch, Trained, play, seeded


def train(contest: Contest, meta: Meta, rows: Rows) -> Trained:
    """One pass of CTRTrainer.fit."""
    seeded(contest)
    model = _model(contest, meta)
    with tempfile.TemporaryDirectory() as folder:
        trainer = CTRTrainer(
            model, optimizer_params={"lr": contest.rate}, n_epoch=1, model_path=folder
        )
        batches = _loader(contest, meta, rows, Path(folder) / "train.parquet")
        with Stopwatch() as watch:
            trainer.fit(batches)

    def predict(scored: Rows) -> np.ndarray:
        with tempfile.TemporaryDirectory() as folder:
            batches = _loader(contest, meta, scored, Path(folder) / "scored.parquet")
            model.eval()
            with torch.no_grad():
                return np.concatenate([model(x).numpy() for x, _ in batches])

    return Trained(
        wall_s=watch.wall_s,
        processor_s=watch.processor_s,
        parameters=sum(p.numel() for p in model.parameters()),
        predict=predict,
    )


def _model(contest: Contest, meta: Meta) -> torch.nn.Module:
    width, owner = contest.embedding_dim, {}
    sparse, dense = {}, [DenseFeature(name) for name in meta.dense]
    for name, table in [*meta.sparse, *((n, t) for n, (t, _) in meta.constants.items())]:
        shared = owner.setdefault(table, name)
        sparse[name] = SparseFeature(
            name, meta.tables[table], width, shared_with=None if shared == name else shared
        )
    hidden = [contest.mlp_width] * contest.layers

    def sequences(pooling: str) -> list[SequenceFeature]:
        return [
            SequenceFeature(
                event, meta.tables[table], width, pooling, shared_with=owner[table], padding_idx=0
            )
            for event, (_, table, _) in zip(meta.events, meta.history, strict=True)
        ]

    if contest.model == "dcnv2":
        own = [sparse[name] for name, _ in meta.sparse]
        return DCNv2(
            [*own, *sequences("mean"), *dense],
            contest.layers,
            {"dims": hidden},
            use_low_rank_mixture=False,
        )
    targets = [sparse.pop(name) for name in meta.targets]
    return DIN(
        list(sparse.values()),
        sequences("concat"),
        targets,
        {"dims": hidden},
        {"dims": [contest.attention_width]},
    )


def _loader(contest: Contest, meta: Meta, rows: Rows, path: Path) -> DataLoader:
    columns: dict[str, Any] = {
        name: pa.array(list(values)) if values.ndim == 2 else values
        for name, values in meta.columns(rows).items()
    }
    table = pa.table({**columns, "label": rows.label})
    pq.write_table(table, path, row_group_size=64 * contest.batch_size)
    dataset = ParquetIterableDataset([str(path)], batch_size=contest.batch_size)

    def split(batch: dict[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        label = batch.pop("label")
        return batch, label

    return DataLoader(dataset, batch_size=None, collate_fn=split)


if __name__ == "__main__":
    sys.exit(play(sys.argv[1:], train))
