"""Intercepts per surface and objective, fitted on rows that the model had not yet seen.

The last hours before the cut are cut into parts; before a part is trained on, the averaged weights
score it. Those scores are what a forecast is: no row that is trained on afterwards, and none of the
holdout, lends the fit its own label. The shift is added to the heads' biases of the published
model, so that every reader of a snapshot has it, and so does the next day's start.

Suffixes: N rows, M rows with a label, K objectives, Z surfaces, P shifts.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model.batch import Batch
from model.foundation import FoundationModel
from model.inference import forward_all
from model.parallel import Engine
from model.ranks import any_rank, rank, total, world_size
from pipeline.mixing.loader import Loader
from pipeline.run.manifest import replacing
from pipeline.run.window import HOUR_US

Floats = NDArray[np.float64]
PARTS: Final = 4
SCORING_ROWS: Final = 2_048
# How far a short pass is believed to leave the log odds off (standard deviations): an objective as
# a whole, and a surface around it. They make an intercept of n positives count for
# n / (n + 1 / sd^2) of what its own rows say: the fit of a few dozen positives is mostly noise, and
# on planted days the averaged weights were off by .02 to .05 for clicks and .1 to .15 for
# conversions, and the surfaces of a first run on few rows by .2 around that.
OBJECTIVE_SD: Final = 0.1
SURFACE_SD: Final = 0.1
NEWTON_STEPS: Final = 25
STEP_LIMIT: Final = 1.0


@dataclass(frozen=True, kw_only=True)
class Scored:
    """Logits of rows before they were trained on, with labels, weights (0 = masked), surfaces."""

    logits_NK: NDArray[np.float32]
    labels_NK: NDArray[np.float32]
    weights_NK: NDArray[np.float32]
    surface_N: NDArray[np.int64]


class Calibrator:
    """Scores the parts of a loader's last hours when their turn comes; kept in a folder.

    A resumed training finds the parts that were scored before it was killed. A part is made of the
    same steps on every rank, and each rank scores its own rows of them.
    """

    def __init__(self, loader: Loader, begin_us: int, folder: Path) -> None:
        self.loader, self.folder = loader, folder
        before = np.count_nonzero(loader.columns["label_us"] < begin_us)
        first = int(total(torch.tensor(before)))
        bounds = np.linspace(-(-first // loader.batch_size), loader.num_batches, PARTS + 1)
        places = bounds.round().astype(int).tolist()
        self.parts = [range(a, b) for a, b in pairwise(places) if a < b]

    def before(self, batch: int, engine: Engine) -> None:
        """Score the part that begins with `batch`, if there is one and it was not scored yet."""
        for number, part in enumerate(self.parts):
            path = self._path(number, rank())
            if part.start == batch and any_rank(not path.is_file()):
                self.folder.mkdir(parents=True, exist_ok=True)
                _write(path, self._score(engine, part))

    def scored(self) -> Scored:
        """The scores of all parts and ranks, in the loader's order."""
        numbers = range(len(self.parts))
        paths = [self._path(number, of) for number in numbers for of in range(world_size())]
        return _joined([_read(path) for path in paths])

    def intercepts(self, num_surfaces: int) -> tuple[Floats, Floats]:
        """Fitted shifts [Z, K] and the weighted positives behind them [Z, K]."""
        scored = self.scored()
        return fit_intercepts(scored, num_surfaces), positives(scored, num_surfaces)

    def _path(self, number: int, of_rank: int) -> Path:
        return self.folder / f"part_{number}_rank_{of_rank}.npz"

    def _score(self, engine: Engine, part: range) -> Scored:
        with torch.random.fork_rng(devices=[]):  # making a model draws its first weights
            model = engine.export()

        def scored(batch: Batch) -> Scored:
            return Scored(
                logits_NK=(model(batch).logits_BK + shift_of(self.loader, batch)).float().numpy(),
                labels_NK=batch.labels_BK.numpy(),
                weights_NK=(batch.weight_BK * batch.mask_BK).numpy(),
                surface_N=batch.surface_B.numpy(),
            )

        begin, end = self.loader.first_row(part.start), self.loader.first_row(part.stop)
        firsts = range(begin, end, SCORING_ROWS)
        batches = (self.loader.rows(first, min(first + SCORING_ROWS, end)) for first in firsts)
        return _joined(list(forward_all(scored, batches)))


def shift_of(loader: Loader, batch: Batch) -> Tensor:
    """What the mix's sampling adds to the logits of a loader's batch in the loss, [B, 1]."""
    return torch.from_numpy(loader.columns["shift"][batch.row_B.numpy()])[:, None]


def calibration_begin(begin_us: int, cut_us: int, hours: int) -> int:
    """Label time from which rows calibrate: the last `hours` of the segment [begin, cut)."""
    return max(begin_us, cut_us - hours * HOUR_US)


def fit_intercepts(scored: Scored, num_surfaces: int) -> Floats:
    """The shift [Z, K] of largest posterior probability: one per objective, one per surface on it.

    Both have normal priors around 0 (`OBJECTIVE_SD`, `SURFACE_SD`); without rows the shift is 0.
    """
    own_NZ = np.eye(num_surfaces)[scored.surface_N]
    design_NP = np.concatenate([np.ones((len(own_NZ), 1)), own_NZ], axis=1)
    precision_P = np.array([OBJECTIVE_SD**-2] + [SURFACE_SD**-2] * num_surfaces)
    shifts = []
    for logit_N, y_N, w_N in zip(
        scored.logits_NK.T, scored.labels_NK.T, scored.weights_NK.T, strict=True
    ):
        known_N = w_N > 0
        logit_M, y_M, w_M = (a_N[known_N].astype(np.float64) for a_N in (logit_N, y_N, w_N))
        shift_P = _newton(design_NP[known_N], logit_M, y_M, w_M, precision_P)
        shifts.append(shift_P[0] + shift_P[1:])
    return np.stack(shifts, axis=1)


def positives(scored: Scored, num_surfaces: int) -> Floats:
    """Weighted positives by surface and objective [Z, K]."""
    found_NK = (scored.labels_NK * scored.weights_NK).astype(np.float64)
    return np.stack(
        [np.bincount(scored.surface_N, found_N, num_surfaces) for found_N in found_NK.T], axis=1
    )


def apply_intercepts(model: FoundationModel, shift_ZK: Floats) -> None:
    """Add the shifts to the heads' biases of a plain model."""
    bias_ZK = model.dense.heads.bias_ZK
    with torch.no_grad():
        bias_ZK.add_(torch.from_numpy(shift_ZK).to(bias_ZK.dtype))


def named(
    values_ZK: Floats, surfaces: tuple[str, ...], objectives: tuple[str, ...]
) -> dict[str, dict[str, float]]:
    """Values [Z, K] as JSON: surface -> objective -> value."""
    return {
        surface: {o: round(float(v), 6) for o, v in zip(objectives, row, strict=True)}
        for surface, row in zip(surfaces, values_ZK, strict=True)
    }


def _newton(
    design_NP: Floats, logit_N: Floats, y_N: Floats, w_N: Floats, precision_P: Floats
) -> Floats:
    shift_P = np.zeros(len(precision_P))
    for _ in range(NEWTON_STEPS):
        p_N = 1.0 / (1.0 + np.exp(-(logit_N + design_NP @ shift_P)))
        slope_P = design_NP.T @ (w_N * (y_N - p_N)) - precision_P * shift_P
        curve_PP = (design_NP.T * (w_N * p_N * (1 - p_N))) @ design_NP + np.diag(precision_P)
        step_P = np.linalg.solve(curve_PP, slope_P)
        shift_P = shift_P + np.clip(step_P, -STEP_LIMIT, STEP_LIMIT)
    return shift_P


def _joined(parts: list[Scored]) -> Scored:
    names = [f.name for f in fields(Scored)]
    return Scored(**{n: np.concatenate([getattr(p, n) for p in parts]) for n in names})


def _write(path: Path, scored: Scored) -> None:
    arrays: dict[str, Any] = {f.name: getattr(scored, f.name) for f in fields(Scored)}
    with replacing(path) as file:
        np.savez(file, **arrays)


def _read(path: Path) -> Scored:
    with np.load(path, allow_pickle=False) as found:
        return Scored(**{f.name: found[f.name] for f in fields(Scored)})
