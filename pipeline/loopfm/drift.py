"""`python -m pipeline drift --run DIR --against EPOCH`: how far a refresh moved the vectors.

A student that was trained on one epoch's vectors reads another's wrongly; this says how wrongly.
Both epochs' vectors of the same impressions are compared: the centroid's shift, in units of the
older vectors' spread, and how much of the newer ones a linear map of the older ones explains.
Suffixes: N impressions that both epochs have, d code width.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from pipeline.loopfm.compress import unpack
from pipeline.loopfm.lake import codes_of, day_folder, read_bucket, read_index
from pipeline.run.errors import ConfigError, DataError
from pipeline.run.paths import Run, open_run

MIN_ROWS = 100
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Drift:
    """`centroid_shift`: of the mean, by the root mean square distance of older vectors from theirs.

    `same` and `aligned`: R2 of the newer vectors against the older ones as they are, and against
    their best linear map, fitted on every other impression and scored on the rest; 1 is no drift.
    """

    rows: int
    centroid_shift: float
    same: float
    aligned: float


def drift_between(older_Nd: Floats, newer_Nd: Floats) -> Drift:
    """The drift of paired vectors; `DataError` when there are too few of them."""
    if len(older_Nd) < MIN_ROWS:
        raise DataError(
            f"drift needs at least {MIN_ROWS} impressions that both epochs have, got "
            f"{len(older_Nd)}; compare epochs that share a day"
        )
    spread = float(np.sqrt(np.square(older_Nd - older_Nd.mean(0)).sum(1).mean()))
    shift = float(np.linalg.norm(newer_Nd.mean(0) - older_Nd.mean(0)))
    design = np.concatenate([older_Nd, np.ones((len(older_Nd), 1))], axis=1)
    weights, *_ = np.linalg.lstsq(design[::2], newer_Nd[::2], rcond=None)
    return Drift(
        rows=len(older_Nd),
        centroid_shift=shift / max(spread, 1e-12),
        same=_explained(newer_Nd[1::2], older_Nd[1::2]),
        aligned=_explained(newer_Nd[1::2], design[1::2] @ weights),
    )


def drift_of(run: Run, against: str) -> Drift:
    """The drift from epoch `against` to the run's, on the days that the lake has of both."""
    index = read_index(run)
    if against == index["epoch"]:
        raise ConfigError(f"epoch {against!r} is the run's own; name an earlier one")
    pairs = [
        (day_folder(run, against, day), day_folder(run, index["epoch"], day))
        for day in sorted(index["days"])
    ]
    shared = [(a, b) for a, b in pairs if a.is_dir() and b.is_dir()]
    if not shared:
        known = sorted(p.name.removeprefix("epoch=") for p in run.lake("representations").iterdir())
        raise DataError(f"epoch {against!r} has none of {run.config.day}'s days; choose of {known}")
    sides = [_joined(older, newer) for older, newer in shared]
    return drift_between(*(np.concatenate(side) for side in zip(*sides, strict=True)))


def _joined(older: Path, newer: Path) -> tuple[Floats, Floats]:
    """Vectors of the impressions that both folders hold, in one order."""
    ids, vectors = zip(*(_vectors(folder) for folder in (older, newer)), strict=True)
    frames = [
        pl.DataFrame({"impression_id": found, f"place_{side}": np.arange(len(found))})
        for side, found in enumerate(ids)
    ]
    both = frames[0].join(frames[1], on="impression_id", validate="1:1").sort("impression_id")
    return vectors[0][both["place_0"].to_numpy()], vectors[1][both["place_1"].to_numpy()]


def _vectors(folder: Path) -> tuple[npt.NDArray[np.int64], Floats]:
    tables = [read_bucket(path) for path in sorted(folder.glob("bucket=*.parquet"))]
    ids = np.concatenate([table["impression_id"].to_numpy() for table in tables])
    return ids, np.concatenate([unpack(codes_of(t)) for t in tables]).astype(np.float64)


def _explained(wanted_Nd: Floats, found_Nd: Floats) -> float:
    error = np.square(wanted_Nd - found_Nd).sum()
    return float(1.0 - error / np.square(wanted_Nd - wanted_Nd.mean(0)).sum())


def main(argv: list[str]) -> int:
    """Print the drift as JSON."""
    parser = argparse.ArgumentParser(prog="python -m pipeline drift", description=__doc__)
    parser.add_argument("--run", required=True, help="the run folder, after represent")
    parser.add_argument("--against", required=True, help="id of an earlier epoch")
    arguments = parser.parse_args(argv)
    print(json.dumps(asdict(drift_of(open_run(arguments.run), arguments.against))))
    return 0
