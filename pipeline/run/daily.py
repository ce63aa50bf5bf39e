"""`python -m pipeline daily`: one day through the whole chain, run by Airflow, from one command.

Starts the servers that do not run, triggers the day over the REST API, shows each task as it
ends, waits for the three DAGs, prints a summary, and stops what it started.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import logging
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.run import servers
from pipeline.run.config import RunConfig
from pipeline.run.environment import state_folder
from pipeline.run.errors import EXIT_FAILED, EXIT_OK, DataError, RetryError
from pipeline.run.launch import pipeline_command
from pipeline.run.lock import locked
from pipeline.run.paths import Run, free_gb, home, landing_folder, open_run, run_folder
from pipeline.run.presets import SIZES, source_spec
from pipeline.run.published import PUBLISHED, published_files
from pipeline.run.resolve import config_of, request_parser, resolve
from pipeline.run.runs import unfinished
from pipeline.run.summary import summary
from pipeline.run.trigger import abandon_lost, trigger, trigger_form
from pipeline.run.watch import Failure, Watcher

log = logging.getLogger(__name__)
FETCHABLE = ("openbandit", "movielens", "tafeng")
FREE_GB = {"smoke": 1, "small": 2, "base": 40}


def main(argv: list[str]) -> int:
    """Run the day that the arguments name; exit code 1 when a task failed."""
    parser = request_parser("python -m pipeline daily", day_required=False)
    parser.add_argument("--rerun", action="store_true", help="run the chain even when it is done")
    arguments = parser.parse_args(argv)
    arguments.day = arguments.day or default_day(arguments.source)
    config = config_of(arguments)
    check_source(config)
    check_disk(config.size)
    folder = run_folder(config)
    if not arguments.rerun and (folder / "run.json").is_file():
        run = open_run(folder)
        if not unfinished(run):
            print(f"{config.day} is done: every stage of {folder} is finished\n")
            print(f"{summary(run, {})}\n\n{_links(run)}")
            return EXIT_OK
    with locked(state_folder() / "daily.lock", wait_s=0.0):
        return _run_day(resolve(config), arguments)


def default_day(source: str) -> str:
    """Yesterday (UTC) for planted data, else the set's own, or the last day that was fetched."""
    if source == "planted":
        return (dt.datetime.now(dt.UTC).date() - dt.timedelta(days=1)).isoformat()
    if source in PUBLISHED:
        return PUBLISHED[source].default_day
    if source not in FETCHABLE:
        if not source.endswith(".toml"):
            source_spec(source, SIZES[0])  # says which sources there are
        raise DataError(f"source {source} has no default day; name one: DAY=2026-11-29")
    return fetched_days(source)[-1]


def fetched_days(source: str) -> list[str]:
    """Days of a public data set in the landing area; fetches it when it is not there."""
    path = home() / "lake" / "landing" / source / "source.json"
    if not path.is_file():
        log.info("%s is not there yet: fetching it", source)
        done = subprocess.run(pipeline_command("fetch", source), check=False)
        if done.returncode != 0 or not path.is_file():
            raise DataError(
                f"{source} could not be fetched; see above, then: python -m pipeline fetch {source}"
            )
    days = json.loads(path.read_text())["days"]
    if not days:
        raise DataError(f"{path} names no days; remove {path.parent} and fetch {source} again")
    return sorted(days)


def check_source(config: RunConfig) -> None:
    """`DataError` unless the source has data of the day, as far as that is known beforehand."""
    if config.source.kind == "planted":
        return
    if config.source.name in PUBLISHED:
        landed = landing_folder(home(), config, "set", "manifest.json").is_file()
        if config.source.files or not landed:
            published_files(PUBLISHED[config.source.name], config.source.files)
        return
    if config.source.name in FETCHABLE:
        days = fetched_days(config.source.name)
        if config.day not in days:
            raise DataError(
                f"source {config.source.name} has no data of {config.day}; "
                f"choose a day from {days[0]} to {days[-1]}"
            )
        return
    for table in config.source.tables:
        if "://" in table.path:
            continue  # stage land asks the store, with the patience that a store needs
        landing = str(landing_folder(home(), config))
        pattern = table.path.replace("{day}", config.day).replace("{landing}", landing)
        where = Path(pattern) if Path(pattern).is_absolute() else home() / pattern
        if table.table == "impressions" and not _matches(where):
            raise DataError(
                f"no {table.table} of {config.day}: {where} matches no file; "
                "check source.tables.path and the day"
            )


def check_disk(size: str) -> None:
    """`RetryError` when the disk of the home folder is almost full."""
    free = free_gb()
    if free < FREE_GB[size]:
        raise RetryError(
            f"{home()} has {free:.1f} GB left, a {size} run needs {FREE_GB[size]}; free some, "
            "or set HEADWATER_HOME to a larger disk"
        )


def _run_day(folder: Path, arguments: argparse.Namespace) -> int:
    print(f"run {folder}", flush=True)
    # a polite kill must stop the servers too, so it leaves by way of `finally`
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    began = servers.up()
    try:
        api = servers.api()
        print(servers.describe(), flush=True)
        if "scheduler" in began:
            abandon_lost(api)
        dag_run_id = trigger(api, trigger_form(arguments))
        with _display() as (show, status):
            outcome = Watcher(api, folder, show, status).follow(dag_run_id)
    finally:
        if began:
            servers.down(began)
    run = open_run(folder)
    print(f"\n{summary(run, outcome.seconds)}\n\n{_links(run)}")
    if outcome.failures:
        print(_failed(outcome.failures), file=sys.stderr)
        return EXIT_FAILED
    return EXIT_OK


@contextmanager
def _display() -> Iterator[tuple[Callable[[str], None], Callable[[str], None]]]:
    """Lines for what ended and, on a terminal, a live line of what runs."""
    if not sys.stdout.isatty():
        yield lambda line: print(line, flush=True), lambda text: None
        return
    from rich.console import Console

    console = Console()
    with console.status("starting") as live:
        yield lambda line: console.print(line, markup=False, highlight=False), live.update


def _links(run: Run) -> str:
    state = servers.read_state()
    lines = [
        f"report     {run.output('report') / 'report.html'}",
        f"data docs  {run.inside('data_docs')}",
        f"run        {run.folder}",
    ]
    if state:
        lines += [
            f"Airflow    {state.ports.airflow_url} (make up)",
            f"MLflow     {state.ports.mlflow_url} (make up)",
        ]
    return "\n".join(lines)


def _failed(failures: tuple[Failure, ...]) -> str:
    parts = []
    for failure in failures:
        lines = "\n".join(f"  {line}" for line in failure.lines)
        parts.append(f"FAILED {failure.dag}.{failure.task}\n{lines}")
    return "\n".join(parts)


def _matches(path: Path) -> bool:
    if path.is_dir():
        return any(path.iterdir())
    anchor = Path(path.anchor)
    return path.is_file() or any(anchor.glob(str(path.relative_to(anchor))))
