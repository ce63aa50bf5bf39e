"""The lake of representations: lake/<dataset>/representations/epoch=E/day=D/bucket=B.parquet.

Suffixes: N representations, d code width, K objectives.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.loopfm.compress import from_arrow, is_broken, to_arrow
from pipeline.loopfm.epoch import Epoch, refuse_future
from pipeline.loopfm.nibbles import Floats, Packed, is_packed, pack_nibbles
from pipeline.loopfm.sequence import Int64s
from pipeline.run.errors import ContractError, DataError
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


def write_bucket(
    path: Path,
    rows: Representations,
    epoch: Epoch,
    names: Sequence[str],
    values_C: Floats | None = None,
) -> None:
    """Write one bucket's rows, in four bits where a codebook is given.

    `ContractError` when the epoch's model saw their future, `DataError` when a code is broken.
    """
    if len(rows):
        refuse_future(epoch, int(rows.ts_us_N.min()), "representations")
    broken = np.flatnonzero(is_broken(rows.z_Nd))
    if len(broken):
        raise DataError(
            f"{len(broken)} of {len(rows)} representations of epoch {epoch.id} hold values that "
            f"are not finite, first that of impression {int(rows.impression_N[broken[0]])}; "
            "look for extreme features, or open a new epoch"
        )
    column = to_arrow(rows.z_Nd)
    z = (pa.field("z", column.type), column)
    if values_C is not None:
        z = pack_nibbles(rows.z_Nd.astype(np.float32), values_C).to_arrow()
    columns = {
        "impression_id": pa.array(rows.impression_N),
        "user_id": pa.array(rows.user_N),
        "ad_id": pa.array(rows.ad_N),
        "ts_us": pa.array(rows.ts_us_N),
        "z": z[1],
        **{f"logit_{name}": pa.array(rows.logits_NK[:, k]) for k, name in enumerate(names)},
        "epoch": pa.array([epoch.id] * len(rows), type=pa.string()),
        "fm_cut_us": pa.array(np.full(len(rows), epoch.fm_cut_us, dtype=np.int64)),
    }
    table = pa.table(columns)
    table = table.set_column(table.schema.get_field_index("z"), z[0], z[1])
    pq.write_table(table, path, compression="zstd")


def read_representations(run: Run) -> Representations:
    """All representations that the run's index names, by (day, bucket, row).

    `ContractError` when one of them comes from another epoch or from a model that saw labels after
    it; `DataError` when a day is missing, a file is cut short or a code is broken.
    """
    index = read_index(run)
    tables = [
        read_bucket(path) for day in sorted(index["days"]) for path in day_files(run, index, day)
    ]
    if not tables:
        raise DataError(f"the index of {run.config.day} names no days; run represent again")
    codes = np.concatenate([codes_of(table) for table in tables])
    table = pa.concat_tables([t.drop_columns("z") for t in tables])
    _check(table, codes, index)
    logits = [table[f"logit_{o.name}"].to_numpy() for o in run.config.objectives]
    return Representations(
        impression_N=table["impression_id"].to_numpy(),
        user_N=table["user_id"].to_numpy(),
        ad_N=table["ad_id"].to_numpy(),
        ts_us_N=table["ts_us"].to_numpy(),
        z_Nd=codes,
        logits_NK=np.stack(logits, axis=1),
    )


def read_index(run: Run) -> dict[str, Any]:
    """The stage's index: epoch, cut and days; `DataError` when represent has not run."""
    path = run.output("represent") / INDEX
    try:
        index: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        raise DataError(f"{path} does not exist; run the represent stage first") from None
    return index


def day_files(run: Run, index: Mapping[str, Any], day: str) -> list[Path]:
    """A day's files in the lake; `DataError` when there are none."""
    folder = day_folder(run, index["epoch"], day)
    files = sorted(folder.glob("bucket=*.parquet"))
    if not files:
        raise DataError(f"{folder} holds no vectors, though the index names it; run represent")
    return files


def read_bucket(path: Path) -> pa.Table:
    """One file; `DataError` when it is cut short or no Parquet at all."""
    try:
        return pq.read_table(path, partitioning=None)
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(
            f"{path} cannot be read ({str(error).splitlines()[0]}); remove its folder and run "
            "represent again"
        ) from error


def codes_of(table: pa.Table) -> npt.NDArray[np.generic]:
    """Vectors of a file as stored in bytes or float32; four-bit ones as float32."""
    field = table.schema.field("z")
    if is_packed(field):
        return Packed.of_arrow(field, table["z"]).unpack()
    return from_arrow(table["z"])


def _check(table: pa.Table, codes: npt.NDArray[np.generic], index: Mapping[str, Any]) -> None:
    remedy = "remove the epoch's folder and run represent again"
    others = set(table["epoch"].unique().to_pylist()) - {index["epoch"]}
    if others:
        raise ContractError(
            f"representations of epochs {sorted(others)} lie among those of {index['epoch']}: "
            f"vectors of two snapshots do not mix; {remedy}"
        )
    leaks = int((table["fm_cut_us"].to_numpy() > table["ts_us"].to_numpy()).sum())
    if leaks:
        raise ContractError(
            f"{leaks} representations of epoch {index['epoch']} are older than their model's cut: "
            f"they leak; {remedy}"
        )
    broken = int(is_broken(codes).sum())
    if broken:
        raise DataError(
            f"{broken} representations of epoch {index['epoch']} hold values that are not finite; "
            f"{remedy}"
        )


def representation_inputs(run: Run) -> dict[str, str]:
    """Fingerprints of what `read_representations` reads."""
    return {"represent": need_manifest(run.output("represent")).fingerprint}
