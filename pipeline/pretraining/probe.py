"""Where MXFP8 is safe in a trained model: `python -m pipeline probe --run DIR`.

Reads the run's snapshot and batches spread over its mix, prints the SQNR of every layer that can
run in MXFP8, and writes the table to `probe.json` in the run folder. The names that it finds unsafe
are a value for `model.mxfp8_keep`.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import kernels
from model.batch import Batch
from model.config import ConfigError
from model.foundation import FoundationModel, training_loss
from model.precision import candidates
from model.probe import THRESHOLD_DB, LayerSqnr, probe
from model.snapshot import load_snapshot
from pipeline.mixing.loader import Loader
from pipeline.pretraining.calibration import shift_of
from pipeline.run.errors import EXIT_OK
from pipeline.run.manifest import need_manifest, write_json
from pipeline.run.paths import Run, open_run

COLUMNS = ("input_db", "weight_db", "output_db", "gradient_db")


def main(argv: list[str]) -> int:
    """Print the table and write it as JSON."""
    parser = argparse.ArgumentParser(prog="python -m pipeline probe", description=__doc__)
    parser.add_argument("--run", required=True, help="a run whose pretrain is finished")
    parser.add_argument("--batches", type=int, default=8, help="of the training batch size")
    parser.add_argument("--threshold", type=float, default=THRESHOLD_DB, help="in dB")
    parser.add_argument("--out", type=Path, help="default: probe.json in the run folder")
    arguments = parser.parse_args(argv)
    run = open_run(arguments.run)
    found = probe_run(run, num_batches=arguments.batches, threshold_db=arguments.threshold)
    path = arguments.out or run.inside("probe.json")
    write_json(path, found)
    print("\n".join([*text(found), str(path)]))
    return EXIT_OK


def probe_run(run: Run, *, num_batches: int, threshold_db: float = THRESHOLD_DB) -> dict[str, Any]:
    """SQNR and choice of every layer of a run's model, as JSON."""
    if num_batches < 1:
        raise ConfigError(f"batches must be at least 1, got {num_batches}; use 8")
    need_manifest(run.output("pretrain"))
    model = _float32_model(run)
    loader = Loader(run, batch_size=run.config.train.batch_size)
    weights_K = torch.tensor([o.task_weight for o in run.config.objectives])
    places = np.unique(np.linspace(0, loader.num_batches - 1, num_batches).round().astype(int))

    def batches() -> Iterator[Batch]:
        return (loader.batch(int(place)) for place in places)

    def loss(batch: Batch) -> Tensor:
        output = model(batch)
        shifted_BK = output.logits_BK + shift_of(loader, batch)
        return training_loss(replace(output, logits_BK=shifted_BK), batch, weights_K)

    found = probe(model.dense, loss, batches())
    how, reason = kernels.mxfp8_support()
    return {
        "mxfp8": f"{how} ({reason})",
        "threshold_db": threshold_db,
        "batches": len(places),
        "layers": {name: _row(layer, threshold_db) for name, layer in found.items()},
        "mxfp8_keep": [name for name, layer in found.items() if not layer.is_safe(threshold_db)],
    }


def text(found: dict[str, Any]) -> list[str]:
    """The table's lines, and what they suggest."""
    width = max((len(name) for name in found["layers"]), default=5)
    lines = [f"{'layer':{width}}" + "".join(f"{c.removesuffix('_db'):>10}" for c in COLUMNS)]
    for name, row in found["layers"].items():
        values = "".join(f"{'-' if row[c] is None else row[c]:>10}" for c in COLUMNS)
        lines.append(f"{name:{width}}{values}  {'safe' if row['safe'] else 'keep in float32'}")
    chosen = {"model.precision": "mxfp8", "model.mxfp8_keep": found["mxfp8_keep"]}
    return [
        *lines,
        f"SQNR in dB, the lowest of {found['batches']} batches; safe: output and gradient reach "
        f"{found['threshold_db']:g}; MXFP8 is {found['mxfp8']}",
        f"--overrides '{json.dumps(chosen)}'",
    ]


def _float32_model(run: Run) -> FoundationModel:
    """The run's snapshot with projections of events that are not folded, as MXFP8 has them."""
    config = run.config
    trained = load_snapshot(run.output("pretrain") / "model")
    shape = replace(config.model, precision="mxfp8", mxfp8_keep=(), mxfp8_keep_last=0)
    model = FoundationModel(config.features, config.objectives, len(config.surfaces), shape)
    model.load_state_dict(trained.state_dict())
    for layer in candidates(model.dense).values():
        layer.low = False
    return model.eval()


def _row(layer: LayerSqnr, threshold_db: float) -> dict[str, Any]:
    """JSON of a layer; what no batch has shown is null."""
    values = {n: round(v, 1) if math.isfinite(v) else None for n, v in asdict(layer).items()}
    return values | {"safe": layer.is_safe(threshold_db)}
