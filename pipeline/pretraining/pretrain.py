"""Stage `pretrain`: one pass over the mix, oldest label first.

A first run trains in two segments: labels before `students_begin`, after which the weights are
frozen as the representation epoch, and the rest up to the cut. Later runs start from their parent's
model and have one segment. The published model's intercepts are fitted on scores that the last
hours got before they were trained on. Killed at any step, the stage goes on from its last
checkpoint and ends with the same bytes.
"""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from model import checkpoint
from model.batch import Batch
from model.foundation import FoundationModel, training_loss
from model.heads import prior_bias
from model.ranks import any_rank, barrier, join_process_group, rank, total, world_size
from model.snapshot import save_snapshot
from pipeline.mixing.loader import Loader
from pipeline.pretraining.calibration import (
    Calibrator,
    apply_intercepts,
    calibration_begin,
    named,
    shift_of,
)
from pipeline.pretraining.epoch import describe, inherited_epoch, opens_epoch
from pipeline.pretraining.meter import Clock, Meter
from pipeline.pretraining.mfu import peak_gflops, training_gflop
from pipeline.pretraining.setup import banner, build_engine, prior_of
from pipeline.run.codec import digest
from pipeline.run.errors import DataError
from pipeline.run.manifest import Manifest, Outcome, need_manifest, produce
from pipeline.run.paths import Run, confined
from pipeline.run.progress import Progress
from pipeline.run.ranks import run_ranks
from pipeline.run.window import Window, window_of

log = logging.getLogger(__name__)


def pretrain(run: Run, unit: str) -> Manifest:
    """Train the foundation model; publish model/, epoch/ (when opened), metrics and summary."""
    return pretrain_by(run, lambda folder, config_hash: _build(run, folder, config_hash))


def pretrain_by(run: Run, trained: Callable[[Path, str], Outcome]) -> Manifest:
    """The stage, by what trains and fills a folder: this process, ranks, or ranks of many hosts."""
    inputs, settings = asked(run)
    return produce(
        run.output("pretrain"),
        stage="pretrain",
        inputs=inputs,
        settings=settings,
        build=lambda folder: trained(folder, digest([inputs, settings])),
    )


def asked(run: Run) -> tuple[dict[str, str], list[object]]:
    """What the stage's output depends on: fingerprints of its inputs, and its settings."""
    config = run.config
    inputs = {"mix": need_manifest(run.output("mix")).fingerprint}
    if config.parent and config.warm_start:
        inputs["parent"] = config.parent.fingerprint
    settings: list[object] = [
        config.model,
        config.train,
        config.features,
        config.objectives,
        config.surfaces,
    ]
    settings += [config.window, config.transfer.refresh_days, config.warm_start, config.parent]
    return inputs, settings


def _build(run: Run, folder: Path, config_hash: str) -> Outcome:
    ranks = run.config.train.ranks
    if ranks == 1:
        return train(run, folder, config_hash)
    into = ("--folder", str(folder), "--config-hash", config_hash)
    return Outcome(**run_ranks(ranks, "pipeline", "rank", "--run", str(run.folder), *into))


def train(run: Run, folder: Path, config_hash: str) -> Outcome:
    """Train as this rank of the run's ranks; the first one fills `folder`."""
    window = window_of(run.config)
    torch.set_num_threads(run.config.train.threads)
    training = Training(run, window, config_hash)
    training.run_all()
    return training.publish(folder)


class Training:
    """The engine, where it stands, and what it has measured."""

    def __init__(self, run: Run, window: Window, config_hash: str) -> None:
        self.run, self.window, self.config_hash = run, window, config_hash
        self.checkpoints = run.inside("checkpoints")
        self.epoch_folder = self.checkpoints / "epoch"
        self.calibration_folder = self.checkpoints / "calibration"
        self.saver = checkpoint.Saver(self.checkpoints, config_hash=config_hash)
        self.opens_epoch = opens_epoch(run, window)
        join_process_group()
        self.segments = self.segments_of(run, window)
        self.calibrator = self._calibrator()
        self.engine = build_engine(run)
        self.segment = self.batch = 0
        self.meter = Meter(tuple(o.name for o in run.config.objectives))
        self.weights_K = torch.tensor([o.task_weight for o in run.config.objectives])
        self._start()
        self.clock = Clock(
            began=time.monotonic(),
            gflop_a_row=training_gflop(run.config, self.segments),
            peak_gflops=peak_gflops(run.config),
            ranks=world_size(),
        )
        self._saved_at = time.monotonic()
        num_rows = total(torch.tensor(sum(s.num_rows for s in self.segments)))
        banner(run, self.engine, int(num_rows), config_hash)

    @staticmethod
    def segments_of(run: Run, window: Window) -> list[Loader]:
        """The spans of label time that are trained one after the other: this rank's rows."""
        bounds = [window.train_begin, window.cut]
        if opens_epoch(run, window):
            bounds.insert(1, window.students_begin)
        size = run.config.train.batch_size
        ranks: dict[str, Any] = {"rank": rank(), "world_size": world_size()}
        return [
            Loader(run, begin_us=a, end_us=b, batch_size=size, **ranks) for a, b in pairwise(bounds)
        ]

    def _calibrator(self) -> Calibrator | None:
        """What scores the last segment's last hours; None when there are none."""
        hours = self.run.config.window.calibration_hours
        if not hours:
            return None
        begin = self.window.students_begin if self.opens_epoch else self.window.train_begin
        begin_us = calibration_begin(begin, self.window.cut, hours)
        calibrator = Calibrator(self.segments[-1], begin_us, self.calibration_folder)
        return calibrator if calibrator.parts else None

    def _start(self) -> None:
        """Resume this run, or start from the parent's model, or from nothing."""
        state = checkpoint.resume(self.checkpoints, self.engine, config_hash=self.config_hash)
        if state:
            self.segment, self.batch = state["segment"], state["batch"]
            self.meter = Meter(self.meter.objectives, state["meter"])
            return
        if rank() == 0:
            for folder in (self.epoch_folder, self.calibration_folder):
                shutil.rmtree(folder, ignore_errors=True)
        barrier()
        parent = self.run.config.parent
        if parent and self.run.config.warm_start:
            folder = confined(self.run.home, parent.folder, "pretrain", "model")
            checkpoint.warm_start(folder, self.engine)
            return
        config = self.run.config
        columns = self.segments[0].columns
        prior_ZK = prior_of(columns, config.objectives, len(config.surfaces))
        self.engine.set_dense({"heads.bias_ZK": prior_bias(prior_ZK)})
        self.engine.restart_averages()

    def run_all(self) -> None:
        """Train every segment that is left; checkpoints are on disk when it returns."""
        total = sum(s.num_batches for s in self.segments)
        with Progress("pretrain", total) as progress:
            progress.step(self.engine.steps)
            while self.segment < len(self.segments):
                for batch in self._batches():
                    self.step(batch)
                    progress.step(1, **self.meter.figures(), **self.clock.figures())
                self._end_segment()
        self.meter.close(self.engine.steps)
        self.saver.wait()

    def _batches(self) -> Iterator[Batch]:
        """Batches that are left of the segment; the time spent waiting for them is counted.

        A part of the last hours is scored before its first batch is handed out.
        """
        batches = self.segments[self.segment].batches(self.batch)
        while True:
            began = time.monotonic()
            batch = next(batches, None)
            self.clock.waited += time.monotonic() - began
            if batch is None:
                return
            if self.calibrator and self.segment == len(self.segments) - 1:
                self.calibrator.before(self.batch, self.engine)
            yield batch

    def step(self, batch: Batch) -> None:
        """Train on one batch."""
        output = self.engine.forward(batch)
        shift_B1 = shift_of(self.segments[self.segment], batch)
        output = replace(output, logits_BK=output.logits_BK + shift_B1)
        loss = training_loss(output, batch, self.weights_K)
        if not torch.isfinite(loss):
            raise DataError(
                f"the loss is {float(loss)} at step {self.engine.steps}; "
                "lower train.dense_lr or look for extreme dense features"
            )
        self.engine.backward(loss)
        self.engine.step()
        self.batch += 1
        self.clock.rows += batch.num_rows
        self.meter.add(loss, output.logits_BK, batch, self.engine.steps)
        due = time.monotonic() - self._saved_at >= self.run.config.train.checkpoint_every_s
        if any_rank(due):
            self.save()

    def _end_segment(self) -> None:
        self.segment, self.batch = self.segment + 1, 0
        if self.opens_epoch and self.segment == 1:
            model = self.engine.export()
            self._snapshot(self.epoch_folder, model, self.window.students_begin)
        self.save()

    def save(self) -> None:
        """Begin to write a checkpoint."""
        began = time.monotonic()
        state = {"segment": self.segment, "batch": self.batch, "meter": self.meter.state()}
        self.saver.save(self.engine, state)
        self._saved_at = time.monotonic()
        self.clock.saved += self._saved_at - began

    def _snapshot(self, folder: Path, model: FoundationModel, cut_us: int, **extra: Any) -> None:
        if rank() > 0:
            return
        config = self.run.config
        save_snapshot(
            folder,
            model,
            features=config.features,
            objectives=config.objectives,
            surfaces=config.surfaces,
            config=config.model,
            extra={"fm_cut_us": cut_us, "steps": self.engine.steps, **extra},
        )

    def _calibrated(self) -> tuple[FoundationModel, dict[str, Any]]:
        """The averaged model with its intercepts, and what they are."""
        model, config = self.engine.export(), self.run.config
        if self.calibrator is None:
            return model, {}
        shift_ZK, positives_ZK = self.calibrator.intercepts(len(config.surfaces))
        apply_intercepts(model, shift_ZK)
        names = config.surfaces, tuple(o.name for o in config.objectives)
        return model, {
            "intercepts": named(shift_ZK, *names),
            "positives": named(positives_ZK, *names),
        }

    def publish(self, folder: Path) -> Outcome:
        """Write the stage's output, on the first rank."""
        model, calibration = self._calibrated()
        self._snapshot(folder / "model", model, self.window.cut, calibration=calibration)
        checkpoint.save_moments(folder / "model", self.engine)
        figures: dict[str, Any] = {**self.meter.figures(), **self.clock.figures()}
        if rank() == 0:
            figures["epoch"] = self._describe(folder, calibration)
        return Outcome(rows=self.meter.rows, figures=figures)

    def _describe(self, folder: Path, calibration: dict[str, Any]) -> str:
        """Write what lies beside the model; the id of the epoch that is in force."""
        if self.opens_epoch:
            shutil.copytree(self.epoch_folder, folder / "epoch")
            published = self.run.output("pretrain") / "epoch"
            begin = self.window.students_begin
            epoch = describe(self.run, folder / "epoch", published, begin)
        else:
            epoch = inherited_epoch(self.run, self.window)
        lines = [json.dumps(r, sort_keys=True) + "\n" for r in self.meter.records]
        (folder / "metrics.jsonl").write_text("".join(lines))
        summary: dict[str, Any] = {
            "epoch": epoch,
            "cut_us": self.window.cut,
            "rows": self.meter.rows,
            "steps": self.engine.steps,
            "calibration": calibration,
            "last": self.meter.records[-1] if self.meter.records else None,
        }
        (folder / "summary.json").write_text(json.dumps(summary, indent=1, sort_keys=True))
        return str(epoch["id"])
