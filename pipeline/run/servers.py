"""`python -m pipeline servers up|down|status`: MLflow and Airflow on loopback.

`up` starts what does not run yet, waits until all answer and remembers it in
.headwater/servers.json; `down` stops whole sessions and checks that nothing of them lives.
"""

from __future__ import annotations

import argparse
import datetime as dt
import importlib.metadata
import json
import logging
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pipeline.run import processes
from pipeline.run.airflow_api import AirflowApi
from pipeline.run.codec import digest, from_dict, to_dict
from pipeline.run.environment import (
    LOOPBACK,
    PORTS,
    USER,
    Ports,
    airflow_home,
    choose_ports,
    credentials,
    server_environment,
    state_folder,
)
from pipeline.run.errors import EXIT_OK, RetryError
from pipeline.run.lock import locked
from pipeline.run.manifest import write_json
from pipeline.run.paths import REPOSITORY, home
from pipeline.run.processes import Session
from pipeline.run.runs import CHAIN

log = logging.getLogger(__name__)
NAMES = ("mlflow", "api-server", "dag-processor", "scheduler")
START_S = 180.0


@dataclass(frozen=True, kw_only=True)
class Server:
    """One running server."""

    name: str
    session: Session


@dataclass(frozen=True, kw_only=True)
class State:
    """What runs, where, and whether the days start by themselves."""

    ports: Ports
    schedule: bool
    servers: tuple[Server, ...] = field(default=())


def main(argv: list[str]) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m pipeline servers", description=__doc__)
    parser.add_argument("action", choices=("up", "down", "status"))
    parser.add_argument(
        "--schedule", action="store_true", help="let foundation_daily start after each midnight"
    )
    arguments = parser.parse_args(argv)
    if arguments.action == "up":
        up(schedule=arguments.schedule)
        print(describe())
    elif arguments.action == "down":
        print(f"stopped {', '.join(down()) or 'nothing: no server runs'}")
    else:
        print(describe())
    return EXIT_OK


def up(*, schedule: bool = False) -> tuple[str, ...]:
    """Start what does not run, wait until all is healthy; the names of what was started.

    What runs keeps its ports and its schedule mode. A start that fails is undone.
    """
    with locked(state_folder() / "servers.lock"):
        before = read_state()
        known = before or State(ports=choose_ports(), schedule=schedule)
        running = {s.name for s in known.servers if processes.leader_alive(s.session)}
        missing = tuple(name for name in NAMES if name not in running)
        if not missing:
            return ()
        if not running:
            known = State(ports=choose_ports(), schedule=schedule)
        try:
            _start(missing, known, was_scheduled=bool(before and before.schedule))
        except BaseException:
            _stop(missing)
            raise
        return missing


def down(names: Sequence[str] = NAMES) -> tuple[str, ...]:
    """Stop servers; the names of those that ran. `RetryError` when one cannot be stopped."""
    with locked(state_folder() / "servers.lock"):
        return _stop(names)


def read_state() -> State | None:
    """What was started last, running or not; None before the first start."""
    try:
        return from_dict(State, json.loads(_state_path().read_text()))
    except FileNotFoundError:
        return None


def api() -> AirflowApi:
    """A client of the running Airflow; `RetryError` when none was started."""
    state = read_state()
    if state is None:
        raise RetryError("no server was started; run: make up")
    return AirflowApi(state.ports.airflow_url, USER, credentials().password)


def describe() -> str:
    """What runs, for people."""
    state = read_state()
    alive = [s.name for s in state.servers if processes.leader_alive(s.session)] if state else []
    if state is None or not alive:
        return "no server runs; start them: make up"
    return "\n".join(
        (
            f"running: {', '.join(alive)}; schedule {'on' if state.schedule else 'off'}",
            f"Airflow  {state.ports.airflow_url}  user {USER}, password in "
            f"{state_folder() / 'credentials.json'}",
            f"MLflow   {state.ports.mlflow_url}",
            f"logs     {state_folder() / 'logs'}",
        )
    )


def pools() -> dict[str, dict[str, Any]]:
    """The pools that Airflow gets: name -> slots, description, include_deferred."""
    return json.loads((REPOSITORY / "deploy" / "pools.json").read_text())


def _start(missing: Sequence[str], state: State, *, was_scheduled: bool) -> None:
    secret = credentials()
    environment = server_environment(state.ports, secret, schedule=state.schedule)
    client = AirflowApi(state.ports.airflow_url, USER, secret.password)
    _launch(["mlflow"], missing, state, environment)
    _migrate(environment)
    began = time.time()
    # A schedule that was switched off since is still in the database until the DAGs are read
    # again: until then no scheduler may run, or it would start a day that nobody asked for.
    early = ["api-server", "dag-processor"]
    first = early if was_scheduled and not state.schedule else [*early, "scheduler"]
    _launch(first, missing, state, environment)
    _wait("api-server", lambda: bool(client.health() and client.execution_health()))
    _make_pools(client)
    _wait("dag-processor", lambda: _dags_read(client, began if "dag-processor" in missing else 0))
    _launch(["scheduler"], missing, state, environment)
    _wait("scheduler", lambda: client.health()["scheduler"]["status"] == "healthy")
    _wait("mlflow", lambda: _answers(f"{state.ports.mlflow_url}/health"))


def _launch(
    names: Sequence[str], missing: Sequence[str], state: State, environment: dict[str, str]
) -> None:
    """Start those of `names` that are missing and not started yet, and remember them."""
    current = read_state()
    kept = tuple(s for s in (current.servers if current else ()) if s.name not in names)
    started = []
    for name in names:
        old = next((s for s in (current.servers if current else ()) if s.name == name), None)
        if name not in missing or (old and processes.leader_alive(old.session)):
            started += [old] if old else []
            continue
        if old:
            processes.stop([old.session])  # what a dead leader left behind
        session = processes.start(
            _command(name, state.ports), environment=environment, log=_log_path(name)
        )
        log.info("%s started (pid %d)", name, session.pid)
        started.append(Server(name=name, session=session))
    write_json(_state_path(), to_dict(replace(state, servers=(*kept, *started))))


def _stop(names: Sequence[str]) -> tuple[str, ...]:
    state = read_state()
    if state is None:
        return ()
    chosen = [s for s in state.servers if s.name in names]
    ran = tuple(s.name for s in chosen if processes.members(s.session))
    # the scheduler first: it would take dead neighbours for a failure and retry tasks
    processes.stop([s.session for s in chosen if s.name == "scheduler"])
    processes.stop([s.session for s in chosen if s.name != "scheduler"])
    kept = tuple(s for s in state.servers if s not in chosen)
    write_json(_state_path(), to_dict(replace(state, servers=kept)))
    return ran


def _command(name: str, ports: Ports) -> list[str]:
    program = str(Path(sys.executable).parent / ("mlflow" if name == "mlflow" else "airflow"))
    if name == "mlflow":
        folder = home() / ".mlflow"
        folder.mkdir(parents=True, exist_ok=True)
        return [
            program,
            "server",
            *("--host", LOOPBACK, "--port", str(ports.mlflow), "--workers", "1"),
            *("--backend-store-uri", f"sqlite:///{folder / 'mlflow.db'}"),
            *("--artifacts-destination", str(folder / "artifacts")),
        ]
    # logs are read from disk: the scheduler's log server would listen on every address
    return [program, name, *(["--skip-serve-logs"] if name == "scheduler" else [])]


def _migrate(environment: dict[str, str]) -> None:
    """Bring Airflow's database to this version, once."""
    version = importlib.metadata.version("apache-airflow-core")
    target = environment.get("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "sqlite")
    mark, wanted = airflow_home() / "migrated.json", [version, digest(target)]
    database = airflow_home() / "airflow.db"
    there = target != "sqlite" or database.is_file()
    if there and mark.is_file() and json.loads(mark.read_text()) == wanted:
        return
    airflow_home().mkdir(parents=True, exist_ok=True)
    log.info("preparing Airflow's database")
    done = subprocess.run(
        [str(Path(sys.executable).parent / "airflow"), "db", "migrate"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RetryError(f"airflow db migrate failed: {done.stderr.strip()[-800:]}")
    write_json(mark, wanted)


def _make_pools(client: AirflowApi) -> None:
    """Create the pools of deploy/pools.json; those that exist keep more slots, never fewer.

    A task that takes more slots than its pool has would wait for ever.
    """
    known = {pool["name"]: pool["slots"] for pool in client.get("/pools", limit=100)["pools"]}
    for name, pool in pools().items():
        if name not in known:
            client.post("/pools", {"name": name, **pool})
        elif known[name] < pool["slots"]:
            log.info("pool %s: %d slots are too few, %d now", name, known[name], pool["slots"])
            client.patch(f"/pools/{name}", {"name": name, **pool})


def _dags_read(client: AirflowApi, since: float) -> bool:
    dags = {d["dag_id"]: d for d in client.get("/dags", limit=100)["dags"]}
    errors = client.get("/importErrors", limit=1)["import_errors"]
    if errors:
        raise RetryError(f"{errors[0]['filename']}: {errors[0]['stack_trace'].strip()[-500:]}")
    times = [dags[name]["last_parsed_time"] for name in CHAIN if name in dags]
    return len(times) == len(CHAIN) and all(
        t and dt.datetime.fromisoformat(t).timestamp() >= since for t in times
    )


def _wait(name: str, ready: Callable[[], bool]) -> None:
    """Until `ready()`; `RetryError` with the server's last lines when it ends or takes too long."""
    deadline = time.monotonic() + START_S
    while True:
        try:
            if ready():
                return
        except RetryError as error:
            if "does not answer" not in str(error):
                raise
        state = read_state()
        server = next((s for s in state.servers if s.name == name), None) if state else None
        if server is None or not processes.leader_alive(server.session):
            raise RetryError(f"{name} ended: {processes.tail(_log_path(name))}{_port_hint(name)}")
        if time.monotonic() > deadline:
            raise RetryError(f"{name} is not ready after {START_S:.0f} s; see {_log_path(name)}")
        time.sleep(0.3)


def _port_hint(name: str) -> str:
    variable = {"mlflow": PORTS["mlflow"][0], "api-server": PORTS["airflow"][0]}.get(name)
    return f"\nif its port is in use, set {variable}" if variable else ""


def _answers(url: str) -> bool:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=5) as response:
            return response.status == 200
    except (OSError, urllib.error.URLError):
        return False


def _state_path() -> Path:
    return state_folder() / "servers.json"


def _log_path(name: str) -> Path:
    return state_folder() / "logs" / f"{name}.log"
