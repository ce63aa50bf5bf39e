"""`python -m pipeline resolve`: freeze a request into a run folder and print its path.

The same request always names the same folder, and an existing run.json is kept as it is, with the
parent that was champion when it was first resolved: a rerun is a rerun of the same thing.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.run.codec import from_dict, to_dict
from pipeline.run.config import Parent, RunConfig, with_overrides
from pipeline.run.errors import EXIT_OK, ConfigError, DataError
from pipeline.run.manifest import write_json
from pipeline.run.paths import confined, home, open_run, run_folder
from pipeline.run.presets import SIZES, preset

log = logging.getLogger(__name__)
PROMOTE = ("auto", "never", "force")


def main(argv: list[str]) -> int:
    """Resolve a request; the run folder is the last line of stdout."""
    arguments = request_parser("python -m pipeline resolve").parse_args(argv)
    print(resolve(config_of(arguments)))
    return EXIT_OK


def request_parser(prog: str, *, day_required: bool = True) -> argparse.ArgumentParser:
    """Arguments that make a request; `daily` shares them."""
    parser = argparse.ArgumentParser(prog=prog, allow_abbrev=False)
    parser.add_argument("--day", required=day_required, default="", help="2026-11-29, UTC")
    parser.add_argument("--size", default="small", help=" | ".join(SIZES))
    parser.add_argument("--source", default="planted", help="a known source or a .toml file")
    parser.add_argument("--files", default="", help="folder with a published set's files")
    parser.add_argument("--surfaces", default="", help="a,b: a part of the source's surfaces")
    parser.add_argument("--overrides", default="", help='JSON, e.g. {"mix.alpha": 0.5}')
    parser.add_argument("--no-warm-start", action="store_true", help="train from nothing")
    parser.add_argument("--promote", default="auto", help=" | ".join(PROMOTE))
    return parser


def config_of(arguments: argparse.Namespace) -> RunConfig:
    """The config of a request, without a parent; `ConfigError` names what is wrong with it.

    Moves `files` into `overrides`, which is how a request travels to Airflow.
    """
    _fold_files(arguments)
    config = preset(arguments.day, arguments.size, arguments.source)
    if arguments.promote not in PROMOTE:
        raise ConfigError(
            f"promote must be one of {list(PROMOTE)}, got {arguments.promote!r}; choose one"
        )
    config = replace(
        config,
        surfaces=_surfaces(config, arguments.surfaces),
        warm_start=not arguments.no_warm_start,
        promote=arguments.promote,
    )
    return with_overrides(config, _overrides(arguments.overrides))


def resolve(config: RunConfig, root: Path | None = None) -> Path:
    """Write run.json of `config`, with its parent frozen, unless it is there; its folder."""
    folder = run_folder(config, root)
    path = folder / "run.json"
    if path.is_file():
        kept = open_run(folder).config
        if replace(kept, parent=None) != config:
            raise DataError(f"{path} holds another request; remove that folder")
        os.utime(path)  # the run of a day that was asked for last is the one that others find
        log.info("run %s exists, parent %s", folder.name, kept.parent and kept.parent.day)
        return folder
    parent = champion_before(config, root)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(path, to_dict(replace(config, parent=parent)))
    log.info("run %s made, parent %s", folder.name, parent and parent.day)
    return folder


def champion_before(config: RunConfig, root: Path | None = None) -> Parent | None:
    """The champion of the config's lineage as of its newest decided day before `config.day`."""
    runs = (root or home()) / "runs"
    days = sorted((p.name for p in runs.glob("????-??-??") if p.name < config.day), reverse=True)
    for day in days:
        champions = _champions(runs / day, config.lineage)
        if champions:
            champion = champions[-1]
            _check_exists(champion, root or home())
            return champion
    return None


def _champions(day_folder: Path, lineage: str) -> list[Parent]:
    """Champions named by the day's decisions of one lineage, the last decided one last."""
    decisions = sorted(
        day_folder.glob("*/promote/decision.json"),
        key=lambda p: (p.stat().st_mtime_ns, p.parent.parent.name),
    )
    found = []
    for path in decisions:
        if open_run(path.parents[1]).config.lineage != lineage:
            continue
        champion = json.loads(path.read_text()).get("champion")
        if champion is not None:
            known = {name: champion.get(name) for name in Parent.__dataclass_fields__}
            found.append(from_dict(Parent, known, "champion"))
    return found


def _check_exists(champion: Parent, root: Path) -> None:
    if not confined(root, champion.folder).is_dir():
        raise DataError(
            f"the champion of {champion.day} is gone: {champion.folder} does not exist; "
            "restore it, or remove the decisions that name it"
        )


def _surfaces(config: RunConfig, text: str) -> tuple[str, ...]:
    wanted = {name.strip() for name in text.split(",") if name.strip()}
    unknown = sorted(wanted - set(config.surfaces))
    if unknown:
        raise ConfigError(
            f"surfaces must be of source {config.source.name}, got {', '.join(unknown)}; "
            f"choose among {', '.join(config.surfaces)}"
        )
    return tuple(s for s in config.surfaces if s in wanted) or config.surfaces


def _fold_files(arguments: argparse.Namespace) -> None:
    """`--files` as the override `source.files`, made absolute: tasks run in another folder."""
    if arguments.files:
        local = "://" not in arguments.files
        path = str(Path(arguments.files).expanduser().resolve()) if local else arguments.files
        given = _overrides(arguments.overrides)
        arguments.overrides, arguments.files = json.dumps(given | {"source.files": path}), ""


def _overrides(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text or "{}")
    except json.JSONDecodeError as error:
        raise ConfigError(
            f'overrides must be JSON like {{"mix.alpha": 0.5}}, got {text!r}: {error}; fix it'
        ) from None
    if not isinstance(value, dict):
        raise ConfigError(f"overrides must be a JSON object, got {text!r}; use {{...}}")
    return value
