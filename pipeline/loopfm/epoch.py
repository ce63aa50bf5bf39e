"""The representation epoch in force: one frozen snapshot of the foundation model and its cut."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from pipeline.run.errors import ContractError, DataError
from pipeline.run.manifest import fingerprint_of, need_manifest, sha256_file
from pipeline.run.paths import Run, confined
from pipeline.run.window import window_of


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """`fm_cut_us`: the snapshot was trained on labels before it only; `folder` holds it."""

    id: str
    fm_cut_us: int
    folder: Path

    def fingerprint(self) -> str:
        """One fingerprint over the snapshot's files."""
        files = {str(p.relative_to(self.folder)): p for p in self.folder.rglob("*") if p.is_file()}
        return fingerprint_of({name: sha256_file(path) for name, path in files.items()})


def epoch_in_force(run: Run) -> Epoch:
    """The epoch that this run's pretrain stage opened or inherited.

    `DataError` when its snapshot is gone; `ContractError` when it saw labels that students use.
    """
    folder = run.output("pretrain")
    need_manifest(folder)
    record = json.loads((folder / "summary.json").read_text())["epoch"]
    epoch = Epoch(
        id=record["id"],
        fm_cut_us=record["fm_cut_us"],
        folder=confined(run.home, record["folder"]),
    )
    if not epoch.folder.is_dir():
        raise DataError(
            f"snapshot {epoch.folder} of epoch {epoch.id} is gone; run pretrain of its day again"
        )
    begin = window_of(run.config).students_begin
    if epoch.fm_cut_us > begin:
        raise ContractError(
            f"epoch {epoch.id} saw labels up to {epoch.fm_cut_us} us, students begin at {begin}: "
            "they leak; open a new epoch"
        )
    return epoch


def refuse_future(epoch: Epoch, ts_us: int, what: str) -> None:
    """`ContractError` when the epoch's model saw labels after a vector's time."""
    if epoch.fm_cut_us > ts_us:
        raise ContractError(
            f"{what} of {ts_us} us come from epoch {epoch.id}, whose model saw labels up to "
            f"{epoch.fm_cut_us} us: they leak; use an epoch that was cut before them"
        )
