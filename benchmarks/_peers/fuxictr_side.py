"""fuxictr's side: DCNv2 and DIN of its model zoo (LongCTR, with histories), trained by `fit`."""

from __future__ import annotations

import sys
import tempfile
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fuxictr.features import FeatureMap
from model_zoo.LongCTR import DIN, DCNv2
from torch import Tensor

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

SET = "peers"
Triple = tuple[dict[str, Tensor], dict[str, Tensor], Tensor]


class Triples(Batches):
    """Batches as the zoo's models read them: the row's features, events and ad, and the mask."""

    def __init__(self, contest: Contest, meta: Meta, rows: Rows) -> None:
        columns = meta.columns(rows)
        self.targets = meta.targets
        for event, target in zip(meta.events, meta.targets, strict=True):
            columns[target] = np.column_stack([columns.pop(event), columns[target]])
        columns["mask"] = np.arange(meta.max_len) < rows.length[:, None]
        super().__init__(columns, contest.batch_size)

    def __iter__(self) -> Iterator[Triple]:  # type: ignore[override]
        for batch in super().__iter__():
            mask = batch.pop("mask").float()
            items = {name: batch.pop(name).flatten() for name in self.targets}
            yield batch, items, mask


def train(contest: Contest, meta: Meta, rows: Rows) -> Trained:
    """One pass of `fit`; its check on held-out rows, which it cannot do without, gets one batch."""
    seeded(contest)
    batches = Triples(contest, meta, rows)
    last = Rows(**{n: a[-contest.batch_size :] for n, a in vars(rows).items()})
    with tempfile.TemporaryDirectory() as folder:
        model = _model(contest, meta, folder)
        with Stopwatch() as watch:
            model.fit(batches, epochs=1, validation_data=Triples(contest, meta, last))
    return Trained.of(watch, model, lambda scored: model.predict(Triples(contest, meta, scored)))


def _model(contest: Contest, meta: Meta, folder: str) -> Any:
    hidden = [contest.mlp_width] * contest.layers
    shape: dict[str, Any] = (
        {"num_cross_layers": contest.layers, "parallel_dnn_hidden_units": hidden}
        if contest.model == "dcnv2"
        else {"dnn_hidden_units": hidden, "attention_hidden_units": [contest.attention_width]}
    )
    (Path(folder) / SET).mkdir()
    torch.manual_seed(contest.seed)
    return (DCNv2 if contest.model == "dcnv2" else DIN)(
        _feature_map(contest, meta, folder),
        embedding_dim=contest.embedding_dim,
        learning_rate=contest.rate,
        optimizer="adam",
        loss="binary_crossentropy",
        monitor="logloss",
        monitor_mode="min",
        metrics=["logloss"],
        model_root=folder,
        verbose=0,
        **shape,
    )


def _feature_map(contest: Contest, meta: Meta, folder: str) -> FeatureMap:
    found = FeatureMap(SET, folder)
    owner: dict[str, str] = {}
    features: OrderedDict[str, dict[str, Any]] = OrderedDict()
    for name, table in [*meta.sparse, *((n, t) for n, (t, _) in meta.constants.items())]:
        features[name] = {
            "type": "categorical",
            "source": "item" if name in meta.targets else "row",
            "vocab_size": meta.tables[table],
            "padding_idx": 0,
        }
        first = owner.setdefault(table, name)
        if first != name:
            features[name]["share_embedding"] = first
    for name in meta.dense:
        features[name] = {"type": "numeric", "source": "row"}
    found.features, found.labels = features, [LABEL]
    found.default_emb_dim = contest.embedding_dim
    found.num_fields = found.get_num_fields()
    return found


if __name__ == "__main__":
    sys.exit(play(sys.argv[1:], train))
