"""`python -m pipeline export --run DIR --surface S`: a student as files that others can run.

Writes exports/<surface>/ in the run folder: student.pt2 (torch.export, any batch size),
golden.parquet (rows as a plain data frame with what training's code says of them) and card.json
(size, latency, figures of the transfer stage). Nothing is left when the exported program and the
data-frame path do not both give the golden rows' probabilities. Latency is wall time of this
machine; that is why this is a command and no stage.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor, nn

from model.student import Student
from model.student_sequence import Padded
from pipeline.loopfm.arms import arms_named
from pipeline.loopfm.lake import read_index
from pipeline.loopfm.served import SEQUENCE, WEIGHTS, ServedStudent, load_student
from pipeline.loopfm.store_fields import read_served
from pipeline.loopfm.student_rows import SurfaceRows, surface_rows
from pipeline.mixing.canonical import read_rows, window_impressions
from pipeline.mixing.packing import feature_columns
from pipeline.run.errors import ContractError
from pipeline.run.manifest import replacing_folder, write_json
from pipeline.run.paths import Run, open_run

GOLDEN_ROWS, TURNS = 64, 30
TOLERANCE = 1e-5


class _Program(nn.Module):
    """Plain tensors in, probabilities out."""

    def __init__(self, student: Student) -> None:
        super().__init__()
        self.student = student

    def forward(self, ids_BF: Tensor, dense_BC: Tensor, pasts: dict[str, Padded]) -> Tensor:
        return torch.sigmoid(self.student.read(ids_BF, dense_BC, pasts).serve_BK)


def export(run: Run, surface: str, arm: str = "") -> dict[str, Any]:
    """Export one surface's student; the card. `ContractError` when golden rows come out otherwise.

    `arm`: by default `transfer.serves`.
    An earlier export is replaced as a whole, and only after all checks.
    """
    seed, arm = run.config.transfer.seed, arm or run.config.transfer.serves
    folder = run.output("transfer", surface) / "arms" / arm / f"seed={seed}"
    served = load_student(folder)
    golden, expected_BK = golden_rows(run, surface, served, arm)
    _agree("the data frame's path", served.probabilities(golden), expected_BK)
    inputs = served.tensors(golden)
    program = _exported(served.student, inputs)
    _agree("the exported program", program.module()(*inputs), expected_BK)
    half = served.tensors(golden.head(len(golden) // 2))
    _agree("the exported program", program.module()(*half), expected_BK[: len(golden) // 2])
    answers = {f"p_{o.name}": expected_BK[:, k].numpy() for k, o in enumerate(served.objectives)}
    card = _card(run, surface, arm, served, golden, folder)
    with replacing_folder(run.inside("exports", surface)) as made:
        torch.export.save(program, made / "student.pt2")
        golden.with_columns(**{n: pl.Series(v) for n, v in answers.items()}).write_parquet(
            made / "golden.parquet"
        )
        write_json(made / "card.json", card)
    return card


def golden_rows(
    run: Run, surface: str, served: ServedStudent, arm: str
) -> tuple[pl.DataFrame, Tensor]:
    """The last scored rows as a data frame, and what the transfer stage published for them."""
    data = surface_rows(run, surface, features=served.features, raw=False)
    (which,) = arms_named((arm,))
    chosen_R = np.flatnonzero(data.test_RK.any(axis=1))[-GOLDEN_ROWS:]
    rows = data.rows.part(torch.from_numpy(chosen_R))
    frame = _plain(run, served, data, chosen_R)
    if which.sequence:
        events_BLS, mask_BL = rows.loop.padded()
        past = [e[m].tolist() for e, m in zip(events_BLS, mask_BL, strict=True)]
        kind = pl.List(pl.List(pl.Float32))
        frame = frame.with_columns(pl.Series(SEQUENCE, past, dtype=kind))
    if which.served:
        frame = frame.hstack(read_served(run, surface, data.ids[chosen_R]))
    published = pl.read_parquet(run.output("transfer", surface) / "predictions.parquet")
    seed = run.config.transfer.seed
    columns = [f"p_{arm}_s{seed}_{o.name}" for o in served.objectives]
    saw = published.tail(len(frame))
    if not saw["impression_id"].equals(data.ids[chosen_R]["impression_id"]):
        raise ContractError(
            f"the rows that transfer scored on {surface} are not those of the log; run it again"
        )
    return frame, torch.from_numpy(np.ascontiguousarray(saw.select(columns).to_numpy()))


def _plain(
    run: Run, served: ServedStudent, data: SurfaceRows, chosen_R: np.ndarray
) -> pl.DataFrame:
    """Feature columns of rows as they lie in the lake, in the rows' order."""
    parts = window_impressions(run)
    where = data.places[chosen_R].with_row_index("row")
    frames = []
    for (bucket,), mine in where.group_by("bucket", maintain_order=True):
        columns = feature_columns(served.features)
        found = read_rows(parts, int(str(bucket)), columns, mine["g"].to_numpy())
        frames.append(found.with_columns(mine["row"]))
    return pl.concat(frames).sort("row").drop("row")


def _exported(
    student: Student, inputs: tuple[Tensor, Tensor, dict[str, Padded]]
) -> torch.export.ExportedProgram:
    batch = torch.export.Dim("batch", min=1, max=1 << 16)
    pasts = {name: ({0: batch}, {0: batch}) for name in inputs[2]}
    shapes = ({0: batch}, {0: batch}, pasts)
    return torch.export.export(_Program(student).eval(), inputs, dynamic_shapes=shapes)


def _agree(what: str, found_BK: Tensor, expected_BK: Tensor) -> None:
    distance = float((found_BK - expected_BK).abs().max())
    if not distance <= TOLERANCE:
        raise ContractError(
            f"{what} differs by {distance:.3g} from what training saw on the golden rows, above "
            f"{TOLERANCE:g}; the student is not exported, train it again"
        )


def _card(
    run: Run, surface: str, arm: str, served: ServedStudent, golden: pl.DataFrame, folder: Path
) -> dict[str, Any]:
    metrics = json.loads((run.output("transfer", surface) / "metrics.json").read_text())
    inputs = served.tensors(golden)
    one = served.tensors(golden.head(1))
    index = read_index(run)
    return {
        "surface": surface,
        "day": run.config.day,
        "arm": arm,
        "epoch": index["epoch"],
        "fm_cut_us": index["fm_cut_us"],
        "parameters": sum(p.numel() for p in served.student.parameters()),
        "bytes": (folder / WEIGHTS).stat().st_size,
        "latency_ms": {
            "rows_1": _latency_ms(lambda: served.student.read(*one)),
            f"rows_{len(golden)}": _latency_ms(lambda: served.student.read(*inputs)),
        },
        "threads": torch.get_num_threads(),
        "rows_trained": metrics["rows_trained"],
        "rows_scored": metrics["rows_scored"],
        "arms": metrics["arms"],
    }


def _latency_ms(work: Callable[[], Any]) -> float:
    """Median wall time of a call."""
    seconds = []
    with torch.inference_mode():
        for _ in range(TURNS):
            began = time.perf_counter()
            work()
            seconds.append(time.perf_counter() - began)
    return round(1_000 * statistics.median(seconds), 4)


def main(argv: list[str]) -> int:
    """Export a surface's student and print its card."""
    parser = argparse.ArgumentParser(prog="python -m pipeline export", description=__doc__)
    parser.add_argument("--run", required=True, help="the run folder")
    parser.add_argument("--surface", required=True)
    parser.add_argument("--arm", default="", help="default: transfer.serves")
    arguments = parser.parse_args(argv)
    card = export(open_run(arguments.run), arguments.surface, arguments.arm)
    print(json.dumps(card, indent=1))
    return 0
