"""The vectors on their way: precompute writes them; verify, publish and replay read them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from model.config import Objective
from pipeline.loopfm.compress import from_arrow, to_arrow
from pipeline.run.paths import Run
from pipeline.solaris.store import Int64s, Vectors

SHARD_FILE = "vectors.parquet"


@dataclass(frozen=True, kw_only=True)
class VectorRows:
    """Vectors of one shard, N rows: `logits_NK` of the objectives in config order."""

    user_N: Int64s
    ad_N: Int64s
    at_us_N: Int64s
    z_Nd: npt.NDArray[np.generic]
    logits_NK: npt.NDArray[np.float32]
    epoch_N: npt.NDArray[np.object_]
    fm_cut_us_N: Int64s

    def __len__(self) -> int:
        return len(self.user_N)


def shard_names(run: Run) -> tuple[str, ...]:
    """Units of the precompute stage."""
    return tuple(str(shard) for shard in range(run.config.solaris.num_shards))


def write_vectors(path: Path, rows: VectorRows, objectives: tuple[Objective, ...]) -> None:
    """Write one shard's vectors as Parquet, one logit column per objective."""
    columns = {
        "user_id": pa.array(rows.user_N),
        "ad_id": pa.array(rows.ad_N),
        "at_us": pa.array(rows.at_us_N),
        "z": to_arrow(rows.z_Nd),
        **{f"logit_{o.name}": pa.array(rows.logits_NK[:, k]) for k, o in enumerate(objectives)},
        "epoch": pa.array(rows.epoch_N.tolist(), type=pa.string()),
        "fm_cut_us": pa.array(rows.fm_cut_us_N),
    }
    pq.write_table(pa.table(columns), path, compression="zstd")


def read_vectors(path: Path, objectives: tuple[Objective, ...]) -> VectorRows:
    """The inverse of `write_vectors`."""
    table = pq.read_table(path)
    logits = [table[f"logit_{o.name}"].to_numpy() for o in objectives]
    return VectorRows(
        user_N=table["user_id"].to_numpy(),
        ad_N=table["ad_id"].to_numpy(),
        at_us_N=table["at_us"].to_numpy(),
        z_Nd=from_arrow(table["z"]),
        logits_NK=np.stack(logits, axis=1).astype(np.float32),
        epoch_N=np.array(table["epoch"].to_pylist(), dtype=object),
        fm_cut_us_N=table["fm_cut_us"].to_numpy(),
    )


def written(run: Run) -> Vectors:
    """The vectors of all shards that were not refused."""
    shards = [verified(run, shard) for shard in shard_names(run)]
    return Vectors(
        user_N=np.concatenate([s.user_N for s in shards]),
        ad_N=np.concatenate([s.ad_N for s in shards]),
        written_at_N=np.concatenate([s.written_at_N for s in shards]),
        score_N=np.concatenate([s.score_N for s in shards]),
        z_Nd=np.concatenate([s.z_Nd for s in shards]),
    )


def verified(run: Run, shard: str) -> Vectors:
    """A shard's vectors without those that the verify stage refused; scores are the logits of
    the primary objective.
    """
    rows = read_vectors(run.output("precompute", shard) / SHARD_FILE, run.config.objectives)
    refused = pl.read_parquet(run.output("verify") / "refused.parquet")
    refused_rows = refused.filter(pl.col("shard") == shard)["row"].to_numpy()
    kept = np.ones(len(rows), dtype=bool)
    kept[refused_rows] = False
    names = [o.name for o in run.config.objectives]
    primary = names.index(run.config.evaluation.primary_objective)  # type: ignore[arg-type]
    return Vectors(
        user_N=rows.user_N,
        ad_N=rows.ad_N,
        written_at_N=rows.at_us_N,
        score_N=rows.logits_NK[:, primary],
        z_Nd=rows.z_Nd,
    ).take(kept)
