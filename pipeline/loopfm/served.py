"""A student as it is served: a plain data frame in, probabilities out.

An arm's folder holds `MLmodel`, which names this module, so that `mlflow.pyfunc.load_model(folder)`
works where this repository is installed, without a pickle. `load_student` does the same without
MLflow. Suffixes: B rows, L events (padded), S numbers of one event.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl
import torch
from safetensors.torch import load_file
from torch import Tensor

from model.config import FeatureSet, Objective
from model.snapshot import features_from
from model.student import Student, StudentConfig
from model.student_sequence import Padded
from pipeline.loopfm.store_fields import AGE, COLUMNS, fields_of
from pipeline.mixing.packing import dense_values, feature_columns, sparse_ids
from pipeline.run.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

WEIGHTS, SHAPE, MLMODEL = "weights.safetensors", "student.json", "MLmodel"
SEQUENCE = "representations"  # a list of vectors per row, oldest first
_MLMODEL: Final = """flavors:
  python_function:
    data: {data}
    loader_module: pipeline.loopfm.served
"""


def write_mlmodel(folder: Path, data: str) -> None:
    """Say how the student in `folder`/`data` is loaded."""
    (folder / MLMODEL).write_text(_MLMODEL.format(data=data))


@dataclass(frozen=True, kw_only=True)
class ServedStudent:
    """A student with what turns a row into tensors."""

    student: Student
    features: FeatureSet
    objectives: tuple[Objective, ...]
    surface: int

    def predict(
        self, model_input: pd.DataFrame, params: dict[str, Any] | None = None
    ) -> pd.DataFrame:
        """Probabilities, a column per objective, of the rows of a pandas data frame.

        Needs every sparse and dense feature by its canonical name and, where the student reads it,
        `representations`: per row a list of the user's stored vectors, oldest first; where it reads
        a store, what a lookup gave (`store_fields.COLUMNS`).
        """
        names = [o.name for o in self.objectives]
        found = pl.DataFrame(self.probabilities(pl.from_pandas(model_input)).numpy(), schema=names)
        answer: pd.DataFrame = found.to_pandas()
        return answer

    def probabilities(self, rows: pl.DataFrame) -> Tensor:
        """As `predict`, of a polars data frame: a tensor [B, K]."""
        with torch.inference_mode():
            return torch.sigmoid(self.student.read(*self.tensors(rows)).serve_BK)

    def tensors(self, rows: pl.DataFrame) -> tuple[Tensor, Tensor, dict[str, Padded]]:
        """What `Student.read` takes; `DataError` names missing columns and misshapen vectors."""
        sequences = [SEQUENCE] if "loop" in self.student.pool else []
        if "raw" in self.student.pool:
            raise DataError("students with raw events are compared, not served; serve kd_loopfm")
        served = self.student.config.served
        needed = {*feature_columns(self.features), *sequences, *(COLUMNS if served else ())}
        missing = sorted(needed - set(rows.columns))
        if missing:
            raise DataError(f"rows to score lack {missing}; add the columns")
        known = rows.with_columns(pl.lit(self.surface, dtype=pl.Int64).alias("surface"))
        ids_BF = torch.from_numpy(sparse_ids(self.features, known).astype(np.int64))
        dense_BC = torch.from_numpy(dense_values(self.features, known))
        pasts = {"loop": self._padded(rows[SEQUENCE].to_list())} if sequences else {}
        if served:
            fields = fields_of(rows, self.student.config.served_dim - AGE)
            pasts |= {name: fields[name].padded() for name in served}
        return ids_BF, dense_BC, pasts

    def _padded(self, vectors: list[list[Any] | None]) -> Padded:
        """The last `length` vectors of every row, the last one in the last place."""
        length, width = self.student.config.length, self.student.config.sequence_dim
        events_BLS = np.zeros((len(vectors), length, width), dtype=np.float32)
        mask_BL = np.zeros((len(vectors), length), dtype=bool)
        for row, past in enumerate(vectors):
            if not past:
                continue
            kept = np.asarray(past[-length:], dtype=np.float32)
            if kept.shape[1:] != (width,) or not np.isfinite(kept).all():
                raise DataError(
                    f"{SEQUENCE} of row {row} must be finite vectors of {width} numbers, got shape "
                    f"{kept.shape}; read them with the lake's unpacking"
                )
            events_BLS[row, -len(kept) :] = kept
            mask_BL[row, -len(kept) :] = True
        return torch.from_numpy(events_BLS), torch.from_numpy(mask_BL)


def load_student(folder: Path) -> ServedStudent:
    """The student of arms/<arm>/seed=S; `DataError` when its files are not there."""
    missing = [name for name in (SHAPE, WEIGHTS) if not (folder / name).is_file()]
    if missing:
        raise DataError(f"{folder} lacks {missing}; run transfer again")
    shape = json.loads((folder / SHAPE).read_text())
    features = features_from(shape["features"])
    objectives = tuple(Objective(**o) for o in shape["objectives"])
    lists = {name: tuple(shape["config"].get(name, ())) for name in ("raw", "served")}
    config = StudentConfig(**{**shape["config"], **lists})
    student = Student(features, objectives, config)
    student.load_state_dict(load_file(folder / WEIGHTS))
    return ServedStudent(
        student=student.eval().requires_grad_(False),
        features=features,
        objectives=objectives,
        surface=shape["surface_index"],
    )


def _load_pyfunc(path: str) -> ServedStudent:
    """MLflow's entry."""
    return load_student(Path(path))
