"""deepctr-torch's side: its DCN with matrix weights (DCNv2) and its DIN, trained by `fit`."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch
from deepctr_torch.inputs import DenseFeat, SparseFeat, VarLenSparseFeat
from deepctr_torch.models import DCN, DIN

from benchmarks._peers.side import LABEL, Contest, Meta, Rows, Stopwatch, Trained, play, seeded

LENGTH = "num_seen"


def train(contest: Contest, meta: Meta, rows: Rows) -> Trained:
    """One pass of `fit`, without its metrics of every batch and without penalties."""
    seeded(contest)
    model = _dcnv2(contest, meta) if contest.model == "dcnv2" else _din(contest, meta)
    optimizer = torch.optim.Adam(model.parameters(), lr=contest.rate)
    model.compile(optimizer, "binary_crossentropy", metrics=[])
    inputs = _inputs(meta, rows)
    with Stopwatch() as watch:
        model.fit(
            inputs, rows.label, batch_size=contest.batch_size, epochs=1, verbose=0, shuffle=False
        )
    return Trained.of(
        watch, model, lambda scored: model.predict(_inputs(meta, scored), batch_size=4_096)
    )


def _dcnv2(contest: Contest, meta: Meta) -> Any:
    return DCN(
        [],
        _columns(contest, meta, [name for name, _ in meta.sparse]),
        cross_num=contest.layers,
        cross_parameterization="matrix",
        dnn_hidden_units=[contest.mlp_width] * contest.layers,
        l2_reg_linear=0,
        l2_reg_embedding=0,
        l2_reg_cross=0,
        seed=contest.seed,
    )


def _din(contest: Contest, meta: Meta) -> Any:
    return DIN(
        _columns(contest, meta, [*(name for name, _ in meta.sparse), *meta.constants]),
        meta.targets,
        dnn_hidden_units=[contest.mlp_width] * contest.layers,
        att_hidden_size=[contest.attention_width],
        l2_reg_embedding=0,
        seed=contest.seed,
    )


def _columns(contest: Contest, meta: Meta, names: list[str]) -> list[object]:
    """Features, sequences (named hist_<feature>, which is how DIN finds them) and numbers."""
    table_of = dict(meta.sparse) | {name: table for name, (table, _) in meta.constants.items()}

    def feature(name: str, table: str) -> SparseFeat:
        size = meta.tables[table]
        return SparseFeat(name, size, embedding_dim=contest.embedding_dim, embedding_name=table)

    sequences = [
        VarLenSparseFeat(feature(f"hist_{target}", table), meta.max_len, "mean", LENGTH)
        for target, (_, table, _) in zip(meta.targets, meta.history, strict=True)
    ]
    return [
        *(feature(name, table_of[name]) for name in names),
        *sequences,
        *(DenseFeat(name, 1) for name in meta.dense),
    ]


def _inputs(meta: Meta, rows: Rows) -> dict[str, np.ndarray]:
    columns = meta.columns(rows)
    del columns[LABEL]
    for event, target in zip(meta.events, meta.targets, strict=True):
        columns[f"hist_{target}"] = columns.pop(event)
    columns[LENGTH] = rows.length
    return {name: values.astype(np.float32) for name, values in columns.items()}


if __name__ == "__main__":
    sys.exit(play(sys.argv[1:], train))
