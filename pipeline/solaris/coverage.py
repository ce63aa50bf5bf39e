"""What lookups got, counted: the share of each source, and the ages of its vectors.

Suffixes: R lookups.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.solaris.serving import EXACT, NEIGHBOURS, SOURCES, USER, Served

QUANTILES = (0.1, 0.5, 0.9, 0.99)


@dataclass(frozen=True, kw_only=True)
class Counted:
    """Of many lookups: the best source, what was in the pair's field, the best one's age (s)."""

    source_R: npt.NDArray[np.int8]
    pair_R: npt.NDArray[np.int8]
    age_s_R: npt.NDArray[np.float32]

    def shares(self, which_R: npt.NDArray[np.bool_] | slice = slice(None)) -> dict[str, Any]:
        """`shares` of all lookups, or of some."""
        return shares(self.source_R[which_R], self.age_s_R[which_R])


def shares(source_R: np.ndarray, age_s_R: np.ndarray) -> dict[str, Any]:
    """Count, share by source, and quantiles of age in hours, per source that has vectors."""
    count = max(len(source_R), 1)
    figures: dict[str, Any] = {"count": len(source_R)}
    figures |= {name: int((source_R == i).sum()) / count for i, name in enumerate(SOURCES)}
    figures["covered"] = figures["exact"] + figures["user"]
    for source in (EXACT, USER, NEIGHBOURS):
        ages = age_s_R[source_R == source]
        if len(ages):
            hours = np.quantile(ages, QUANTILES) / 3600
            figures[f"age_h_{SOURCES[source]}"] = {
                f"p{int(100 * q)}": round(float(h), 4)
                for q, h in zip(QUANTILES, hours, strict=True)
            }
    return figures


def best_age(served: Served) -> np.ndarray:
    """The age in seconds of what `source_B` names."""
    return np.where(served.source_B == USER, served.user_age_s_B, served.age_s_B)
