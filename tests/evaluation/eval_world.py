"""A small planted world with a published (barely trained) model, for tests of evaluation."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from pipeline.mixing.ingest import ingest
from pipeline.mixing.labels import labels
from pipeline.mixing.land import land
from pipeline.mixing.mix import mix
from pipeline.mixing.timeline import timelines
from pipeline.run.codec import to_dict
from pipeline.run.config import Parent, RunConfig
from pipeline.run.manifest import Outcome, need_manifest, produce, write_json
from pipeline.run.paths import Run, open_run, run_folder
from pipeline.run.planted import PlantedConfig
from pipeline.run.presets import preset
from pipeline.run.window import window_of

DAY, NEXT = "2026-03-05", "2026-03-06"
SMALL = PlantedConfig(rows_per_day=900, users=80, ads=30, categories=4)


def small_config(day: str, parent: Parent | None = None) -> RunConfig:
    """The smoke preset with a hundredth of its rows."""
    config = preset(day, "smoke")
    return replace(
        config,
        source=replace(config.source, planted=SMALL),
        evaluation=replace(config.evaluation, bootstrap_draws=50, min_positives=5),
        parent=parent,
    )


def make_run(home: Path, config: RunConfig) -> Run:
    folder = run_folder(config, home)
    folder.mkdir(parents=True)
    write_json(folder / "run.json", to_dict(config))
    return open_run(folder)


def run_to_mix(run: Run) -> None:
    land(run, "")
    for unit in (*run.config.surfaces, "rest"):
        ingest(run, unit)
    labels(run, "")
    for group in range(run.config.window.num_groups):
        timelines(run, str(group))
    mix(run, "")


def publish_model(run: Run, seed: int, steps: int = 20) -> None:
    """What `pretrain` publishes, from a few plain steps: a snapshot, a log and a summary."""
    import torch

    from model.foundation import FoundationModel
    from model.losses import label_loss
    from model.snapshot import save_snapshot
    from pipeline.mixing.loader import Loader

    config = run.config

    def build(folder: Path) -> Outcome:
        torch.manual_seed(seed)
        model = FoundationModel(
            config.features, config.objectives, len(config.surfaces), config.model
        )
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        weight_K = torch.ones(len(config.objectives))
        loader, lines = Loader(run, "train", batch_size=256), []
        for step, batch in zip(range(steps), loader.batches(), strict=False):
            loss = label_loss(model(batch).logits_BK, batch, weight_K)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            lines.append(json.dumps({"step": step, "loss": float(loss.detach())}))
        save_snapshot(
            folder / "model",
            model,
            features=config.features,
            objectives=config.objectives,
            surfaces=config.surfaces,
            config=config.model,
            extra={},
        )
        (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
        return Outcome(rows=loader.num_rows)

    inputs = {"mix": need_manifest(run.output("mix")).fingerprint}
    produce(run.output("pretrain"), stage="pretrain", inputs=inputs, settings=[seed], build=build)


def parent_of(run: Run) -> Parent:
    return Parent(
        day=run.config.day,
        folder=str(run.folder.relative_to(run.home)),
        cut_us=window_of(run.config).cut,
        fingerprint=need_manifest(run.output("pretrain")).fingerprint,
    )
