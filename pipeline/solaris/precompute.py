"""Stage `precompute`: the epoch's snapshot reads a shard's chosen pairs, ahead of requests.

A user's pairs of one time lie side by side and share the user's history: it is encoded once where
`model.gdpa_context` is "user", and looked up and projected once where it is "all".
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl

from model.batch import Batch, Sharing
from model.snapshot import load_snapshot
from pipeline.loopfm.epoch import Epoch, epoch_in_force, refuse_future
from pipeline.loopfm.scoring import score
from pipeline.mixing.loader import BatchAssembler
from pipeline.run.errors import ConfigError
from pipeline.run.manifest import Manifest, Outcome, need_manifest, produce
from pipeline.run.paths import Run
from pipeline.solaris.candidates import pairs_file
from pipeline.solaris.features import PairRows, pair_rows
from pipeline.solaris.vectors import SHARD_FILE, VectorRows, shard_names, write_vectors

SCORE_BATCH = 2_048


def precompute(run: Run, unit: str) -> Manifest:
    """Write the shard's vectors.parquet; figures count the pairs and those that are not known.

    A pair is not known when its user or its ad was never shown before its time: no features.
    """
    if unit not in shard_names(run):
        raise ConfigError(f"unit must be a shard, got {unit!r}; choose among {shard_names(run)}")
    epoch = epoch_in_force(run)

    def build(folder: Path) -> Outcome:
        pairs = pl.read_parquet(pairs_file(run, int(unit)))
        pairs = pairs.sort("user_id", "at_us", maintain_order=True)
        if len(pairs):
            refuse_future(epoch, int(pairs["at_us"].min()), "vectors")  # type: ignore[arg-type]
        ids = (pairs[name].to_numpy() for name in ("user_id", "ad_id", "at_us"))
        known = pair_rows(run, *ids)
        rows = _score(run, epoch, pairs, known)
        write_vectors(folder / SHARD_FILE, rows, run.config.objectives)
        figures = {
            "pairs": len(pairs),
            "unknown_users": known.unknown_users,
            "unknown_ads": known.unknown_ads,
        }
        return Outcome(rows=len(rows), figures=figures)

    inputs = {"predict": need_manifest(run.output("predict")).fingerprint}
    inputs |= {f"timelines/{g}": _timelines(run, g) for g in range(run.config.window.num_groups)}
    return produce(
        run.output("precompute", unit),
        stage="precompute",
        unit=unit,
        inputs=inputs | {"snapshot": epoch.fingerprint()},
        settings=(run.config.features, run.config.transfer.quantization, unit),
        build=build,
    )


def _timelines(run: Run, group: int) -> str:
    return need_manifest(run.output("timelines", str(group))).fingerprint


def _score(run: Run, epoch: Epoch, pairs: pl.DataFrame, known: PairRows) -> VectorRows:
    config = run.config
    model = load_snapshot(epoch.folder)
    scores = score(
        lambda shared: model.candidates(*shared),
        _batches(run, known.frame),
        num_rows=len(known.frame),
        width=config.model.representation_dim,
        num_objectives=len(config.objectives),
        quantization=config.transfer.quantization,
        workers=max(1, (os.cpu_count() or 1) // config.solaris.num_shards),  # shards run abreast
        title="precompute",
    )
    kept = pairs.filter(pl.Series(known.kept_N))
    return VectorRows(
        user_N=kept["user_id"].to_numpy(),
        ad_N=kept["ad_id"].to_numpy(),
        at_us_N=kept["at_us"].to_numpy(),
        z_Nd=scores.z_Nd,
        logits_NK=scores.logits_NK,
        epoch_N=np.full(len(kept), epoch.id, dtype=object),
        fm_cut_us_N=np.full(len(kept), epoch.fm_cut_us, dtype=np.int64),
    )


def _batches(run: Run, frame: pl.DataFrame) -> Iterator[tuple[Batch, Sharing]]:
    assembler = BatchAssembler(run)
    for begin in range(0, len(frame), SCORE_BATCH):
        yield assembler.assemble_shared(frame[begin : begin + SCORE_BATCH])
