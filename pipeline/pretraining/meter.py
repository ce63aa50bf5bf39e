"""Training metrics: loss and normalized entropy per window of steps, resumable to the bit.

Suffixes: B rows, K objectives.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from model.batch import Batch
from model.ranks import total

WINDOW = 50


class Meter:
    """Sums of the open window, and the records of the closed ones (what metrics.jsonl holds)."""

    def __init__(self, objectives: tuple[str, ...], state: dict[str, Any] | None = None) -> None:
        self.objectives = objectives
        state = state or {"records": [], "rows": 0, "steps": 0, "loss": 0.0, "sums": None}
        self.records: list[dict[str, Any]] = state["records"]
        self.rows, self._steps, self._loss = state["rows"], state["steps"], state["loss"]
        zeros = [[0.0] * len(objectives)] * 3
        self._sums_3K = torch.tensor(state["sums"] or zeros, dtype=torch.float64)

    @torch.no_grad()
    def add(self, loss: Tensor, logits_BK: Tensor, batch: Batch, step: int) -> None:
        """Count one step of all ranks; closes the window every `WINDOW` steps.

        `loss` is this rank's share of the joint loss.
        """
        weight_BK = batch.weight_BK * batch.mask_BK
        entropy_BK = F.binary_cross_entropy_with_logits(
            logits_BK, batch.labels_BK, reduction="none"
        )
        parts = (entropy_BK * weight_BK, batch.labels_BK * weight_BK, weight_BK)
        sums_3K = torch.stack([p.sum(0) for p in parts]).double()
        counts = torch.tensor([float(loss), batch.num_rows], dtype=torch.float64)
        joint = total(torch.cat([sums_3K.flatten(), counts]))
        self._sums_3K += joint[:-2].view_as(sums_3K)
        self._loss += float(joint[-2])
        self._steps += 1
        self.rows += int(joint[-1])
        if step % WINDOW == 0:
            self.close(step)

    def close(self, step: int) -> None:
        """End the open window with a record; does nothing when it is empty."""
        if self._steps == 0:
            return
        ne = dict(zip(self.objectives, self._normalized_entropy(), strict=True))
        loss = self._loss / self._steps
        self.records.append({"step": step, "rows": self.rows, "loss": loss, "ne": ne})
        self._steps, self._loss = 0, 0.0
        self._sums_3K.zero_()

    def figures(self) -> dict[str, float]:
        """Loss and click NE of the last closed window, for the progress line."""
        if not self.records:
            return {}
        last = self.records[-1]
        ne = {f"ne_{o}": v for o, v in last["ne"].items() if v is not None}
        return {"loss": last["loss"], **ne}

    def state(self) -> dict[str, Any]:
        """JSON from which a meter goes on exactly."""
        return {
            "records": self.records,
            "rows": self.rows,
            "steps": self._steps,
            "loss": self._loss,
            "sums": self._sums_3K.tolist(),
        }

    def _normalized_entropy(self) -> list[float | None]:
        """Mean cross entropy over that of the base rate; None without both kinds of label."""
        found: list[float | None] = []
        for entropy, positives, weight in self._sums_3K.T.tolist():
            rate = positives / weight if weight else 0.0
            if not 0.0 < rate < 1.0:
                found.append(None)
                continue
            base = -(rate * math.log(rate) + (1 - rate) * math.log(1 - rate))
            found.append(entropy / weight / base)
        return found


@dataclass(kw_only=True)
class Clock:
    """Where the time goes; kept out of the published folder, which holds no wall time.

    `rows` are those of this rank, one of `ranks` that have about as many each.
    """

    began: float
    waited: float = 0.0
    rows: int = 0
    ranks: int = 1

    def figures(self) -> dict[str, float]:
        """Rows per second and the share of time spent waiting for data."""
        spent = max(time.monotonic() - self.began, 1e-9)
        return {"rows_per_s": self.rows * self.ranks / spent, "data_wait": self.waited / spent}
