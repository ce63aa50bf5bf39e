"""The foundation model's forward pass over batches, for representations and for Solaris.

Suffixes: N rows, d code width, K objectives.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from model.batch import Batch
from model.foundation import FoundationModel
from pipeline.loopfm.compress import Quantization, pack, storage_dtype
from pipeline.run.progress import Progress


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Stored codes `z_Nd` and logits `logits_NK`, in the order of the batches' rows."""

    z_Nd: npt.NDArray[np.generic]
    logits_NK: npt.NDArray[np.float32]


def score(
    model: FoundationModel,
    batches: Iterable[Batch],
    *,
    num_rows: int,
    width: int,
    num_objectives: int,
    quantization: Quantization,
    threads: int,
    title: str,
) -> Scores:
    """Codes and logits of all rows, in inference mode with a fixed number of threads."""
    z_Nd = np.zeros((num_rows, width), dtype=storage_dtype(quantization))
    logits_NK = np.zeros((num_rows, num_objectives), dtype=np.float32)
    done = 0
    with torch.inference_mode(), torch_threads(threads), Progress(title, num_rows) as progress:
        for batch in batches:
            output = model(batch)
            rows = slice(done, done + batch.num_rows)
            z_Nd[rows] = pack(output.representation_Bd.float().numpy(), quantization)
            logits_NK[rows] = output.logits_BK.float().numpy()
            done += batch.num_rows
            progress.step(batch.num_rows)
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
