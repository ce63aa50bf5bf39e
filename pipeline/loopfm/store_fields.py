"""What a store answers, as a table and as the fields that students read.

One table for all: the `as_served` stage writes it for training, `replay` for the day, and a
serving process makes it of its lookups: a student cannot learn from one thing and be served
another. A field is a vector or nothing, and with it, as one number more, the vector's age (arXiv
2604.12110).

Columns: `pair` (exact, neighbours or none) says what `z` is, `age_s` its age in seconds; `user`
whether there is the mean `user_z` of the user's vectors, of `user_age_s`. Suffixes: R rows, d code
width, X numbers of a field.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl
import torch

from model.student_sequence import History
from pipeline.loopfm.arms import FIELDS
from pipeline.run.errors import DataError
from pipeline.run.paths import Run

COLUMNS: Final = ("pair", "z", "age_s", "user", "user_z", "user_age_s")
AGE: Final = 1  # numbers of a field beside its vector's
HOUR_S: Final = 3_600.0


def fields_of(rows: pl.DataFrame, width: int) -> dict[str, History]:
    """Every field of a table, one vector or none per row; `DataError` on a table that is not one.

    Ages must be positive where there is a vector: one that is not was computed after the request.
    """
    missing = sorted(set(COLUMNS) - set(rows.columns))
    if missing:
        raise DataError(f"rows that a store answered lack {missing}; join what lookups gave")
    kinds = ("none", *FIELDS[:2])
    pair_R = rows["pair"].cast(pl.String)
    unknown = pair_R.filter(~pair_R.is_in(kinds) | pair_R.is_null())
    if len(unknown):
        raise DataError(f"column pair must hold {list(kinds)}, got {unknown[0]!r}; fix that row")
    user_R = rows["user"].fill_null(value=False).to_numpy().astype(bool)
    found_R = (pair_R != "none").to_numpy()
    pair_RX = _numbers(rows, "z", "age_s", found_R, width)
    user_RX = _numbers(rows, "user_z", "user_age_s", user_R, width)
    there = {name: (pair_R == name).to_numpy() for name in FIELDS[:2]}
    found = {name: one_or_none(pair_RX, there_R) for name, there_R in there.items()}
    return found | {"user": one_or_none(user_RX, user_R)}


def read_served(run: Run, surface: str, ids: pl.DataFrame) -> pl.DataFrame:
    """`COLUMNS` of a surface's impressions (impression_id, ts_us), from the `as_served` stage."""
    path = run.output("as_served") / f"surface={surface}.parquet"
    if not path.is_file():
        raise DataError(f"{path} is not there; run the as_served stage first")
    keys = ["impression_id", "ts_us"]
    played = pl.read_parquet(path, columns=[*keys, *COLUMNS])
    found = ids.select(keys).join(played, on=keys, how="left", maintain_order="left")
    missing = found.filter(pl.col("pair").is_null())
    if len(missing):
        raise DataError(
            f"{len(missing)} of {len(ids)} impressions on {surface} were never looked up, first "
            f"{missing['impression_id'].head(3).to_list()}; run the as_served stage again"
        )
    return found.drop(keys)


def one_or_none(x_RX: npt.NDArray[np.float32], there_R: npt.NDArray[np.bool_]) -> History:
    """Row r reads vector r where it is there."""
    place_R: npt.NDArray[np.int64] = np.arange(len(x_RX), dtype=np.int64)
    return History(
        stored_NS=torch.from_numpy(np.ascontiguousarray(x_RX, dtype=np.float32)),
        begin_B=torch.from_numpy(place_R),
        end_B=torch.from_numpy(place_R + there_R),
        length=1,
    )


def with_age(
    z_Rd: npt.NDArray[np.float32], age_s_R: npt.NDArray[np.floating]
) -> npt.NDArray[np.float32]:
    """Vectors and, as the last number, log(1 + age in hours)."""
    hours_R = np.log1p(age_s_R / HOUR_S)
    return np.concatenate([z_Rd, hours_R[:, None]], axis=1).astype(np.float32)


def _numbers(
    rows: pl.DataFrame, vectors: str, ages: str, found_R: npt.NDArray[np.bool_], width: int
) -> npt.NDArray[np.float32]:
    """The vectors and their ages (R, X); zeros where nothing was found."""
    x_RX = np.zeros((len(rows), width + AGE), dtype=np.float32)
    if not found_R.any():
        return x_RX
    kept = rows.filter(pl.Series(found_R))
    row_R = np.flatnonzero(found_R)
    size_R = kept[vectors].cast(pl.List(pl.Float32)).list.len().fill_null(0).to_numpy()
    if (size_R != width).any():
        bad = int((size_R != width).argmax())
        raise DataError(
            f"{vectors} of row {row_R[bad]} must be {width} numbers, got {size_R[bad]}; "
            "give what the lookup gave"
        )
    z_Rd = kept[vectors].cast(pl.Array(pl.Float32, width)).to_numpy()
    age_s_R = kept[ages].cast(pl.Float64).fill_null(float("nan")).to_numpy()
    for name, good_R in ((vectors, np.isfinite(z_Rd).all(axis=1)), (ages, age_s_R > 0)):
        if not good_R.all():
            bad = int(good_R.argmin())
            raise DataError(
                f"{name} of row {row_R[bad]} must be "
                f"{'positive' if name == ages else 'finite'}, got {kept[name][bad]!r}; a vector "
                "serves only after it was written: look it up at the request's time"
            )
    x_RX[found_R] = with_age(z_Rd, age_s_R)
    return x_RX
