"""What every peer's process does around its library: read its rows, train, write predictions.

Runs in the peer's own environment: numpy and the standard library alone, nothing of the pipeline.

Suffixes: N rows, F sparse features, T events, A attributes of an event.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor, nn

LABEL = "label"


@dataclass(frozen=True, kw_only=True)
class Contest:
    """One training: which model on which rows, its size and its learning rate.

    `layers` cross layers and as many hidden layers of `mlp_width`; DIN's activation unit has one
    hidden layer of `attention_width`. The rows [begin, end) of train.npz are trained on, in their
    order, once; those of `scored` (a file's name, begin, end) are predicted.
    """

    model: str
    data: str
    begin: int
    end: int
    scored: tuple[str, int, int]
    answer: str
    rate: float
    seed: int
    threads: int
    batch_size: int
    embedding_dim: int
    layers: int
    mlp_width: int
    attention_width: int


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Rows as exported: ids [N, F], dense [N, C], history [N, T, A], length [N], label [N]."""

    ids: np.ndarray
    dense: np.ndarray
    history: np.ndarray
    length: np.ndarray
    label: np.ndarray

    @staticmethod
    def read(path: Path, begin: int, end: int) -> Rows:
        """Rows [begin, end) of a file."""
        with np.load(path) as found:
            return Rows(**{name: found[name][begin:end] for name in found.files})


@dataclass(frozen=True, kw_only=True)
class Meta:
    """meta.json: names, tables with their sizes, and what each event attribute is compared with."""

    sparse: list[tuple[str, str]]
    tables: dict[str, int]
    dense: list[str]
    history: list[tuple[str, str, str | int]]
    max_len: int

    @property
    def constants(self) -> dict[str, tuple[str, int]]:
        """Features that the rows do not have: name -> table and the id of every row."""
        return {
            f"{name}_wanted": (table, against)
            for name, table, against in self.history
            if isinstance(against, int)
        }

    @property
    def targets(self) -> list[str]:
        """The feature that each event attribute is compared with."""
        return [a if isinstance(a, str) else f"{n}_wanted" for n, _, a in self.history]

    @property
    def events(self) -> list[str]:
        """Names of the sequences, one per event attribute."""
        return [f"seen_{name}" for name, _, _ in self.history]

    def columns(self, rows: Rows) -> dict[str, np.ndarray]:
        """The rows by name: a feature [N], a sequence [N, T], the label."""
        found: dict[str, np.ndarray] = {
            name: np.ascontiguousarray(rows.ids[:, f]) for f, (name, _) in enumerate(self.sparse)
        }
        found |= {n: np.ascontiguousarray(rows.dense[:, c]) for c, n in enumerate(self.dense)}
        for name, (_, constant) in self.constants.items():
            found[name] = np.full(len(rows.label), constant, np.int32)
        for a, name in enumerate(self.events):
            found[name] = np.ascontiguousarray(rows.history[:, :, a])
        return found | {LABEL: rows.label}


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A side's answer: what its own training loop took, and a function that predicts rows."""

    wall_s: float
    processor_s: float
    parameters: int
    predict: Callable[[Rows], np.ndarray]

    @staticmethod
    def of(watch: Stopwatch, model: nn.Module, predict: Callable[[Rows], np.ndarray]) -> Trained:
        """The answer of a torch model."""
        return Trained(
            wall_s=watch.wall_s,
            processor_s=watch.processor_s,
            parameters=sum(p.numel() for p in model.parameters()),
            predict=predict,
        )


class Batches:
    """Columns as batches of tensors, in order, made by slicing: no library's loader is faster."""

    def __init__(self, columns: dict[str, np.ndarray], batch_size: int) -> None:
        import torch

        self._columns = {name: torch.from_numpy(values) for name, values in columns.items()}
        self._size, self._rows = batch_size, len(next(iter(columns.values())))

    def __len__(self) -> int:
        return -(-self._rows // self._size)

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        for begin in range(0, self._rows, self._size):
            yield {n: values[begin : begin + self._size] for n, values in self._columns.items()}


class Stopwatch:
    """Wall and processor seconds of a block."""

    wall_s = processor_s = 0.0

    def __enter__(self) -> Stopwatch:
        self._began = time.monotonic(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.wall_s = time.monotonic() - self._began[0]
        self.processor_s = time.process_time() - self._began[1]


def play(argv: list[str], train: Callable[[Contest, Meta, Rows], Trained]) -> int:
    """Train what the contest file asks for; writes predictions (.npy) and times (.json)."""
    contest = Contest(**json.loads(Path(argv[0]).read_text()))
    folder = Path(contest.data)
    meta = Meta(**json.loads((folder / "meta.json").read_text()))
    rows = Rows.read(folder / "train.npz", contest.begin, contest.end)
    trained = train(contest, meta, rows)
    name, begin, end = contest.scored
    if end > begin:
        predicted = trained.predict(Rows.read(folder / f"{name}.npz", begin, end))
        np.save(f"{contest.answer}.npy", predicted.astype(np.float64).reshape(-1))
    found: dict[str, Any] = {
        "rows": len(rows.label),
        "wall_s": trained.wall_s,
        "processor_s": trained.processor_s,
        "parameters": trained.parameters,
    }
    Path(f"{contest.answer}.json").write_text(json.dumps(found))
    return 0


def seeded(contest: Contest) -> None:
    """Seed torch and numpy, and bound torch's threads."""
    import torch

    torch.set_num_threads(contest.threads)
    torch.manual_seed(contest.seed)
    np.random.seed(contest.seed)


if __name__ == "__main__":
    sys.exit("run one of the peers' sides, not this file")
