"""Where everything is: the home folder, the lake, run folders and the store."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from pipeline.run.codec import from_dict
from pipeline.run.config import RunConfig
from pipeline.run.errors import ConfigError, DataError

REPOSITORY = Path(__file__).resolve().parents[2]


def home() -> Path:
    """Folder that holds lake/, runs/ and store/: $HEADWATER_HOME, else the repository."""
    return Path(os.environ.get("HEADWATER_HOME", REPOSITORY)).resolve()


def free_gb() -> float:
    """Gigabytes that are free where the home folder is, or will be."""
    place = home()
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free / 1e9


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run folder with its frozen config; all paths of a run come from here."""

    folder: Path
    config: RunConfig

    def output(self, stage: str, unit: str = "") -> Path:
        """Folder that a stage (of one unit) publishes in this run."""
        return self.inside(stage, unit) if unit else self.inside(stage)

    def inside(self, *parts: str) -> Path:
        """A path in the run folder; names that lead outside are refused."""
        return confined(self.folder, *parts)

    @property
    def home(self) -> Path:
        """The home folder of this run: runs/<day>/<run> lies three levels below it."""
        return self.folder.parents[2]

    def lake(self, *parts: str) -> Path:
        """A path in the lake of this run's dataset."""
        return confined(self.home / "lake" / self.config.dataset, *parts)

    def landing(self, *parts: str) -> Path:
        """A path in the landing area of this run's source."""
        return landing_folder(self.home, self.config, *parts)

    def store(self) -> Path:
        """Folder of the embedded Solaris store of this run's lineage."""
        return confined(self.home / "store", self.config.lineage)


def landing_folder(root: Path, config: RunConfig, *parts: str) -> Path:
    """lake/landing/<source>; planted data land under their dataset's name, one world each."""
    name = config.dataset if config.source.kind == "planted" else config.source.name
    return confined(root / "lake" / "landing", name, *parts)


def run_folder(config: RunConfig, root: Path | None = None) -> Path:
    """runs/<day>/<run name> below the home folder."""
    return confined((root or home()) / "runs", config.day, config.run_name)


def open_run(folder: str | Path) -> Run:
    """The run in `folder`; `DataError` when there is no run.json."""
    path = Path(folder).resolve()
    try:
        text = (path / "run.json").read_text()
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(
            f"{path} is not a run folder (no run.json); start with: python -m pipeline resolve"
        ) from None
    return Run(folder=path, config=from_dict(RunConfig, json.loads(text)))


def confined(root: Path, *parts: str) -> Path:
    """`root/parts...`, or `ConfigError` when that would lie outside `root`."""
    path = root.joinpath(*parts)
    if not path.resolve().is_relative_to(root.resolve()):
        raise ConfigError(f"path {'/'.join(parts)!r} leads outside {root}; use a plain name")
    return path
