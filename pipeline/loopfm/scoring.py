"""The foundation model's forward pass over batches, for representations and for Solaris.

Suffixes: N rows, d code width, K objectives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch

from model.foundation import ModelOutput
from model.inference import forward_all
from pipeline.loopfm.compress import Quantization, pack, storage_dtype
from pipeline.run.progress import Progress

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Stored codes `z_Nd` and logits `logits_NK`, in the order of the batches' rows."""

    z_Nd: npt.NDArray[np.generic]
    logits_NK: npt.NDArray[np.float32]


def score(
    model: Callable[[T], ModelOutput],
    batches: Iterable[T],
    *,
    num_rows: int,
    width: int,
    num_objectives: int,
    quantization: Quantization,
    title: str,
    workers: int | None = None,
) -> Scores:
    """Codes and logits of all rows; `workers` batches at a time (`model.inference`).

    `model`: a foundation model, or a function that reads what `batches` yields.
    """
    z_Nd = np.zeros((num_rows, width), dtype=storage_dtype(quantization))
    logits_NK = np.zeros((num_rows, num_objectives), dtype=np.float32)
    done = 0
    with Progress(title, num_rows) as progress:
        for output in forward_all(model, batches, workers=workers):
            rows = slice(done, done + len(output.logits_BK))
            z_Nd[rows] = pack(output.representation_Bd.float().numpy(), quantization)
            logits_NK[rows] = output.logits_BK.float().numpy()
            done = rows.stop
            progress.step(len(output.logits_BK))
    return Scores(z_Nd=z_Nd[:done], logits_NK=logits_NK[:done])


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Run with `count` threads: results depend on the number, so it comes from the config."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
