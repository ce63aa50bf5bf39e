"""Trains cases for test_ranks.py: `rank_worker.py FOLDER CASES`, with forked ranks.

Cases of as many ranks that follow each other are trained by the same processes, in turn. A case
trains on parts of the same joint batches, whatever its ranks are, and leaves its joint loss curve,
its last and its averaged weights. It may start from the checkpoint of another.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import groupby
from pathlib import Path

import torch
from model_world import NUM_SURFACES, OBJECTIVES, make_batch, planted_features
from rank_world import forked_ranks, load_libraries
from safetensors.torch import save_file

from model import checkpoint
from model.batch import Batch
from model.config import ModelConfig
from model.foundation import FoundationModel, training_loss
from model.layout import Layout
from model.parallel import Engine, EngineConfig
from model.ranks import total

ROWS = 32
PARTS = {1: (32,), 2: (18, 14), 4: (11, 9, 5, 7)}  # rows of the ranks: not equal
RATES = {"sgd": (0.1, 2.0), "adaptive": (1e-3, 3e-2)}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One training; `begin` and `end` are steps."""

    name: str
    ranks: int
    zero_stage: int = 0
    sharding: str = "table"
    optimizer: str = "sgd"
    clip_norm: float = 0.0
    begin: int = 0
    end: int = 6
    resume_from: str = ""
    dropout: float = 0.0
    expert: int = 1
    experts: int = 1


def build(case: Case) -> FoundationModel:
    torch.manual_seed(0)
    config = replace(ModelConfig(), dropout=case.dropout, wukong_experts=case.experts)
    return FoundationModel(planted_features(), OBJECTIVES, NUM_SURFACES, config).train()


def engine_of(case: Case) -> Engine:
    dense_lr, sparse_lr = RATES[case.optimizer]
    config = EngineConfig(
        batch_size=ROWS,
        dense_lr=dense_lr,
        sparse_lr=sparse_lr,
        clip_norm=case.clip_norm,
        ranks=case.ranks,
        zero_stage=case.zero_stage,
        layout=Layout(sharding=case.sharding, expert=case.expert),
        optimizer=case.optimizer,
    )
    return Engine(lambda: build(case), config)


def rows_of(batch: Batch, begin: int, end: int) -> Batch:
    """Rows [begin, end) of a batch."""
    events = {}
    for name, e in batch.events.items():
        first, last = (int(e.lengths_B[:n].sum()) for n in (begin, end))
        cut = {n: getattr(e, n)[first:last] for n in ("ids_EA", "gap_E", "age_E")}
        events[name] = type(e)(lengths_B=e.lengths_B[begin:end], **cut)
    plain = [f.name for f in fields(batch) if f.name != "events"]
    return Batch(events=events, **{n: getattr(batch, n)[begin:end] for n in plain})


def share_of(case: Case, step: int, rank: int) -> Batch:
    parts = PARTS[case.ranks]
    begin = sum(parts[:rank])
    return rows_of(make_batch(planted_features(), ROWS, seed=step), begin, begin + parts[rank])


def train(case: Case, folder: Path, rank: int) -> None:
    engine, losses = engine_of(case), []
    if case.resume_from:
        checkpoint.resume(folder / case.resume_from, engine, config_hash="x")
        assert engine.steps == case.begin
    for step in range(case.begin, case.end):
        batch = share_of(case, step, rank)
        loss = training_loss(engine.forward(batch), batch, torch.tensor([1.0, 0.5]))
        engine.backward(loss)
        engine.step()
        losses.append(total(loss.detach().clone()))
    checkpoint.save(folder / case.name, engine, {}, config_hash="x")
    last, average = engine.export(averaged=False), engine.export()
    found = {f"last.{n}": t for n, t in last.state_dict().items()}
    found |= {f"average.{n}": t for n, t in average.state_dict().items()}
    found |= {f"moment.{n}": t for n, t in engine.moments().items()}
    found["losses"] = torch.stack(losses)
    if rank == 0:
        save_file(found, folder / f"{case.name}.safetensors")


def train_all(cases: tuple[Case, ...], folder: Path, rank: int) -> None:
    for case in cases:
        train(case, folder, rank)


def main(folder: Path, cases: list[Case]) -> None:
    load_libraries()
    statuses = {}
    for ranks, group in groupby(cases, key=lambda case: case.ranks):
        in_turn = tuple(group)
        names = ", ".join(case.name for case in in_turn)
        work = partial(train_all, in_turn, folder)
        statuses[names] = forked_ranks(ranks, folder / "meeting", work)
    print(json.dumps(statuses))


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Case(**case) for case in json.loads(sys.argv[2])])
