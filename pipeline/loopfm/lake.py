"""The lake of representations: lake/<dataset>/representations/epoch=E/day=D/bucket=B.parquet.

Suffixes: N representations, d code width, K objectives.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.loopfm.compress import from_arrow, to_arrow
from pipeline.loopfm.epoch import Epoch, refuse_future
from pipeline.loopfm.sequence import Int64s
from pipeline.run.errors import ContractError
from pipeline.run.manifest import need_manifest
from pipeline.run.paths import Run

INDEX = "index.json"


@dataclass(frozen=True, kw_only=True)
class Representations:
    """Logged impressions with the FM's code and logits (objectives in config order)."""

    impression_N: Int64s
    user_N: Int64s
    ad_N: Int64s
    ts_us_N: Int64s
    z_Nd: npt.NDArray[np.generic]
    logits_NK: npt.NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.impression_N)

    def take(self, index: npt.NDArray[np.integer] | npt.NDArray[np.bool_]) -> Representations:
        """The chosen rows."""
        return Representations(
            impression_N=self.impression_N[index],
            user_N=self.user_N[index],
            ad_N=self.ad_N[index],
            ts_us_N=self.ts_us_N[index],
            z_Nd=self.z_Nd[index],
            logits_NK=self.logits_NK[index],
        )


def day_folder(run: Run, epoch_id: str, day: str) -> Path:
    """Where the representations of one day and epoch lie."""
    return run.lake("representations", f"epoch={epoch_id}", f"day={day}")


def write_bucket(path: Path, rows: Representations, epoch: Epoch, names: Sequence[str]) -> None:
    """Write one bucket's rows; `ContractError` when the epoch's model saw their future."""
    if len(rows):
        refuse_future(epoch, int(rows.ts_us_N.min()), "representations")
    columns = {
        "impression_id": pa.array(rows.impression_N),
        "user_id": pa.array(rows.user_N),
        "ad_id": pa.array(rows.ad_N),
        "ts_us": pa.array(rows.ts_us_N),
        "z": to_arrow(rows.z_Nd),
        **{f"logit_{name}": pa.array(rows.logits_NK[:, k]) for k, name in enumerate(names)},
        "epoch": pa.array([epoch.id] * len(rows), type=pa.string()),
        "fm_cut_us": pa.array(np.full(len(rows), epoch.fm_cut_us, dtype=np.int64)),
    }
    pq.write_table(pa.table(columns), path, compression="zstd")


def read_representations(run: Run) -> Representations:
    """All representations that the run's index names, by (day, bucket, row).

    `ContractError` when one of them comes from a model that saw labels after it.
    """
    index = json.loads((run.output("represent") / INDEX).read_text())
    files = [
        path
        for day in sorted(index["days"])
        for path in sorted(day_folder(run, index["epoch"], day).glob("bucket=*.parquet"))
    ]
    table = pa.concat_tables([pq.read_table(path) for path in files])
    ts_us_N, cut_us_N = table["ts_us"].to_numpy(), table["fm_cut_us"].to_numpy()
    leaks = int((cut_us_N > ts_us_N).sum())
    if leaks:
        raise ContractError(
            f"{leaks} representations of epoch {index['epoch']} are older than their model's cut: "
            "they leak; remove the epoch's folder and run represent again"
        )
    logits = [table[f"logit_{o.name}"].to_numpy() for o in run.config.objectives]
    return Representations(
        impression_N=table["impression_id"].to_numpy(),
        user_N=table["user_id"].to_numpy(),
        ad_N=table["ad_id"].to_numpy(),
        ts_us_N=ts_us_N,
        z_Nd=from_arrow(table["z"]),
        logits_NK=np.stack(logits, axis=1),
    )


def representation_inputs(run: Run) -> dict[str, str]:
    """Fingerprints of what `read_representations` reads."""
    return {"represent": need_manifest(run.output("represent")).fingerprint}
