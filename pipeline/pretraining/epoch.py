"""Which representation epoch is in force for a run: its own, its parent's, or a refreshed one."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from pipeline.run.config import Parent
from pipeline.run.errors import DataError
from pipeline.run.manifest import fingerprint_of, sha256_file
from pipeline.run.paths import Run, confined, open_run
from pipeline.run.window import DAY_US, Window, day_of_us

log = logging.getLogger(__name__)
SNAPSHOT_FILES = ("dense.safetensors", "tables.safetensors")


def opens_epoch(run: Run, window: Window) -> bool:
    """Whether this run itself trains a snapshot that saw labels before `students_begin` only."""
    inherits = run.config.parent is not None and run.config.warm_start
    return window.train_begin < window.students_begin and not inherits


def describe(run: Run, snapshot: Path, published: Path, fm_cut_us: int) -> dict[str, Any]:
    """An epoch as summary.json names it; its id comes from the snapshot's content."""
    content = {name: sha256_file(snapshot / name) for name in SNAPSHOT_FILES}
    return {
        "id": f"{day_of_us(fm_cut_us)}-{fingerprint_of(content)[:8]}",
        "fm_cut_us": fm_cut_us,
        "folder": str(published.relative_to(run.home)),
    }


def inherited_epoch(run: Run, window: Window) -> dict[str, Any]:
    """The parent's epoch, or a newer one when that is older than `transfer.refresh_days`.

    A refresh takes the newest ancestor's final model that saw no label at or after
    `students_begin`; without one the old epoch stays in force.
    """
    ancestors = _ancestors(run)
    if not ancestors:
        raise DataError(
            f"{run.folder} has no parent and begins at its students' span: no epoch can be named; "
            "raise window.bootstrap_days"
        )
    epoch: dict[str, Any] = _summary(ancestors[0][0])["epoch"]
    if window.day_end - epoch["fm_cut_us"] <= run.config.transfer.refresh_days * DAY_US:
        return epoch
    for ancestor, cut_us in ancestors:
        if epoch["fm_cut_us"] < cut_us <= window.students_begin:
            model = ancestor.output("pretrain") / "model"
            log.info("epoch %s is old: refreshed from %s", epoch["id"], ancestor.folder.name)
            return describe(run, model, model, cut_us)
    log.warning("epoch %s is old, and no earlier champion can replace it yet", epoch["id"])
    return epoch


def _ancestors(run: Run) -> list[tuple[Run, int]]:
    """The chain of champions before a run, newest first, each with its cut."""
    found: list[tuple[Run, int]] = []
    parent: Parent | None = run.config.parent
    while parent is not None:
        folder = confined(run.home, parent.folder)
        if not (folder / "pretrain" / "summary.json").is_file():
            break
        ancestor = open_run(folder)
        found.append((ancestor, parent.cut_us))
        parent = ancestor.config.parent
    return found


def _summary(run: Run) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads((run.output("pretrain") / "summary.json").read_text())
    return summary
