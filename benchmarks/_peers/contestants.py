"""Who takes part, at which size, and how one training of each is run in a process of its own."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks._measure import child
from benchmarks._peers.data import Prepared
from benchmarks._peers.environments import SIDES
from benchmarks._peers.side import Contest

OURS = "headwater"
MODELS = ("dcnv2", "din")
KUNLUN = "kunlun"
LARGE = "large_kunlun"
BATCH_SIZE = 512
EMBEDDING, LAYERS, MLP, ATTENTION = 16, 3, 128, 64
ATTRIBUTES = 4  # of an event: the peers' vector of an event is as wide as its embeddings
# the presets' own shape
KUNLUN_MODEL: dict[str, Any] = {"arch": KUNLUN}
# 5.2M parameters on MovieLens, 1.4M of them in tables
LARGE_KUNLUN: dict[str, Any] = {
    "arch": KUNLUN,
    "embedding_dim": 64,
    "width": 64,
    "layers": 4,
    "heads": 4,
    "summary_tokens": 8,
    "seeds": 16,
    "sumkron_rank": 4,
    "fm_rank": 16,
    "mlp_width": 512,
    "head_width": 64,
}
LARGE_TOWER = {"width": 64, "heads": 4, "tokens": 8, "max_len": 50}


@dataclass(frozen=True, kw_only=True)
class Training:
    """One training: who, which model, the part of the rows, the learning rate and the seed.

    `part`: "test" trains on all rows and predicts the holdout, "valid" chooses learning rates on
    the last training rows, "last" trains on a few last rows and predicts nothing.
    """

    by: str
    model: str
    part: str
    rate: float
    seed: int = 0
    threads: int = 1
    ranks: int = 1


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a training took, and where its predictions are."""

    rows: int
    wall_s: float
    processor_s: float
    parameters: int
    memory_mb: float
    predictions: str

    @property
    def rate(self) -> float:
        """Rows a second of processor time."""
        return self.rows / self.processor_s

    @property
    def wall_rate(self) -> float:
        """Rows a second."""
        return self.rows / self.wall_s


def run(training: Training, prepared: Prepared, pythons: dict[str, Path], answer: Path) -> Result:
    """Run one training in a process of its own."""
    if training.by == OURS:
        play, given = "benchmarks._peers.ours:play", entry(training, prepared, answer)
        if training.part == "last":
            play = "benchmarks._peers.large:play"
            given["num_ranks"] = training.ranks
        cost = child(play, threads=training.threads, **given)
        found = cost.value
    else:
        call = answer.with_suffix(".call.json")
        call.write_text(json.dumps(asdict(contest(training, prepared, answer))))
        command = [str(pythons[training.by]), "-m", SIDES[training.by], str(call)]
        cost = child(command, threads=training.threads)
        found = json.loads(Path(f"{answer}.json").read_text())
    return Result(**found, memory_mb=cost.memory_mb, predictions=f"{answer}.npy")


def contest(training: Training, prepared: Prepared, answer: Path) -> Contest:
    """A peer's part in places of the exported rows."""
    begin, end, scored = {
        "test": (0, prepared.rows, ("holdout", 0, sys.maxsize)),
        "valid": (0, prepared.valid, ("train", prepared.valid, prepared.rows)),
        "last": (prepared.last, prepared.rows, ("", 0, 0)),
    }[training.part]
    return Contest(
        model=training.model,
        data=prepared.data,
        begin=begin,
        end=end,
        scored=scored,
        answer=str(answer),
        rate=training.rate,
        seed=training.seed,
        threads=training.threads,
        batch_size=BATCH_SIZE,
        embedding_dim=EMBEDDING,
        layers=LAYERS,
        mlp_width=MLP,
        attention_width=ATTENTION,
    )


def entry(training: Training, prepared: Prepared, answer: Path) -> dict[str, Any]:
    """Our part of the same rows, in label times."""
    begin_us, end_us, scored = {
        "test": (0, prepared.cut_us, ("holdout", None, None)),
        "valid": (0, prepared.valid_us, ("train", prepared.valid_us, prepared.cut_us)),
        "last": (prepared.last_us, prepared.cut_us, ("", None, None)),
    }[training.part]
    model, tower = shape(training.model)
    return {
        "run": prepared.run,
        "model": model,
        "tower": tower,
        "begin_us": begin_us,
        "end_us": end_us,
        "scored": scored,
        "answer": str(answer),
        "rate": training.rate,
        "seed": training.seed,
        "num_threads": training.threads,
        "batch_size": BATCH_SIZE,
    }


def shape(model: str) -> tuple[dict[str, Any], dict[str, int]]:
    """Our model's and its towers' sizes: DCNv2 and DIN as large as the peers'."""
    if model == LARGE:
        return LARGE_KUNLUN, LARGE_TOWER
    if model == KUNLUN:
        return KUNLUN_MODEL, {}
    size = {"embedding_dim": EMBEDDING, "width": EMBEDDING, "layers": LAYERS, "mlp_width": MLP}
    return {"arch": model, **size}, {"width": ATTRIBUTES * EMBEDDING}
