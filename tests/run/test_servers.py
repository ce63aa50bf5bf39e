"""Ports, credentials, sessions: what the local servers rest on."""

from __future__ import annotations

import configparser
import json
import os
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pipeline.__main__ import main
from pipeline.run import processes
from pipeline.run.airflow_api import AirflowApi
from pipeline.run.environment import (
    LOOPBACK,
    Ports,
    choose_ports,
    credentials,
    server_environment,
    state_folder,
)
from pipeline.run.errors import ConfigError, RetryError
from pipeline.run.servers import _make_pools, describe, pools

ROOT = Path(__file__).resolve().parents[2]
FORKING = (
    "import subprocess, sys, time;"
    "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], process_group=0);"
    "print('ready', flush=True); time.sleep(60)"
)
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    "print('ready', flush=True); time.sleep(60)"
)


@pytest.fixture
def taken_port() -> object:
    with socket.socket() as held:
        held.bind((LOOPBACK, 0))
        held.listen()
        yield held.getsockname()[1]


def test_a_named_port_in_use_is_one_clear_line(
    own_home: Path,
    taken_port: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HEADWATER_AIRFLOW_PORT", str(taken_port))
    assert main(["servers", "up"]) == 75
    error = capsys.readouterr().err.strip()
    assert error == (
        f"RetryError: port {taken_port} is in use; set HEADWATER_AIRFLOW_PORT to a free one, "
        "or unset it to get any"
    )


def test_a_usual_port_in_use_gives_another(
    taken_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HEADWATER_MLFLOW_PORT", raising=False)
    monkeypatch.setitem(
        __import__("pipeline.run.environment", fromlist=["PORTS"]).PORTS,
        "mlflow",
        ("HEADWATER_MLFLOW_PORT", taken_port),
    )
    assert choose_ports().mlflow != taken_port


@pytest.mark.parametrize("text", ["http", "80", "99999"])
def test_a_wrong_port_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWATER_MLFLOW_PORT", text)
    with pytest.raises(ConfigError, match="HEADWATER_MLFLOW_PORT must be a port"):
        choose_ports()


def test_credentials_are_made_once_and_only_we_read_them(own_home: Path) -> None:
    made = credentials()
    assert credentials() == made
    assert len(made.jwt_secret) >= 64
    server_environment(Ports(airflow=1, mlflow=2), made, schedule=False)
    for name in ("credentials.json", "airflow_passwords.json"):
        mode = stat.S_IMODE((state_folder() / name).stat().st_mode)
        assert mode == 0o600, name


def test_damaged_credentials_say_what_to_do(own_home: Path) -> None:
    state_folder().mkdir()
    (state_folder() / "credentials.json").write_text("{}")
    with pytest.raises(ConfigError, match="remove it"):
        credentials()


def test_git_ignores_what_servers_write() -> None:
    names = [".headwater/credentials.json", ".airflow/airflow.db", ".mlflow/mlflow.db"]
    done = subprocess.run(
        ["git", "check-ignore", *names], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == names


def test_airflow_cfg_has_no_secret_and_stays_on_loopback() -> None:
    parser = configparser.ConfigParser(interpolation=None)
    parser.read(ROOT / "airflow.cfg")
    keys = {key for section in parser.sections() for key in parser[section]}
    assert not [k for k in keys if "secret" in k or "password" in k or "fernet" in k]
    assert parser["api"]["host"] == LOOPBACK
    assert parser["core"]["load_examples"] == "False"
    assert parser["core"]["executor"] if "executor" in keys else True


def test_the_environment_of_tasks(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    made = server_environment(Ports(airflow=7001, mlflow=7002), credentials(), schedule=True)
    assert made["AIRFLOW__API__BASE_URL"] == "http://127.0.0.1:7001"
    assert made["AIRFLOW__CORE__EXECUTION_API_SERVER_URL"] == "http://127.0.0.1:7001/execution/"
    assert made["MLFLOW_TRACKING_URI"] == "http://127.0.0.1:7002"
    assert made["AIRFLOW_HOME"] == str(own_home / ".airflow")
    assert made["HEADWATER_SCHEDULE"] == "on"
    assert made["PATH"].startswith(str(Path(sys.executable).parent))
    assert "PYTHONDONTWRITEBYTECODE" not in made


def begin(script: str, tmp_path: Path) -> processes.Session:
    log = tmp_path / "log"
    command = [sys.executable, "-c", script]
    session = processes.start(command, environment=os.environ, log=log)
    deadline = time.monotonic() + 30
    while "ready" not in processes.tail(log):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return session


def test_stop_ends_all_of_a_session_also_other_groups(tmp_path: Path) -> None:
    session = begin(FORKING, tmp_path)
    assert len(processes.members(session)) == 2
    processes.stop([session])
    assert processes.members(session) == []
    assert not processes.leader_alive(session)


def test_stop_finds_what_a_dead_leader_left(tmp_path: Path) -> None:
    session = begin(FORKING, tmp_path)
    os.kill(session.pid, 9)
    os.waitpid(session.pid, 0)
    assert not processes.leader_alive(session)
    assert len(processes.members(session)) == 1
    processes.stop([session])
    assert processes.members(session) == []


def test_stop_kills_what_ignores_sigterm(tmp_path: Path) -> None:
    session = begin(STUBBORN, tmp_path)
    processes.stop([session], grace_s=0.3)
    assert processes.members(session) == []


def test_a_reused_pid_is_not_ours() -> None:
    stranger = processes.Session(pid=os.getpid(), born=1)
    assert not processes.leader_alive(stranger)
    assert processes.members(stranger) == []


def test_status_without_servers(own_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert describe() == "no server runs; start them: make up"
    assert main(["servers", "down"]) == 0
    assert "no server runs" in capsys.readouterr().out


def test_pools_have_slots() -> None:
    pools = json.loads((ROOT / "deploy" / "pools.json").read_text())
    assert set(pools) == {"gpu", "io", "light"}
    assert all(pool["slots"] > 0 and pool["description"] for pool in pools.values())


class _RecordingApi(AirflowApi):
    """Answers with the given pools and keeps what was asked to change."""

    def __init__(self, slots: dict[str, int]) -> None:
        super().__init__("http://127.0.0.1:1")
        self.slots, self.changes = slots, []

    def get(self, path: str, **query: object) -> dict[str, Any]:
        return {"pools": [{"name": n, "slots": s} for n, s in self.slots.items()]}

    def post(self, path: str, body: Any) -> dict[str, Any]:
        self.changes.append(("made", body["name"], body["slots"]))
        return {}

    def patch(self, path: str, body: Any) -> dict[str, Any]:
        self.changes.append(("raised", body["name"], body["slots"]))
        return {}


def test_pools_are_made_or_raised_but_never_shrunk() -> None:
    wanted = {name: pool["slots"] for name, pool in pools().items()}
    api = _RecordingApi({"gpu": wanted["gpu"] - 1, "io": wanted["io"] + 5})
    _make_pools(api)
    assert api.changes == [("raised", "gpu", wanted["gpu"]), ("made", "light", wanted["light"])]


def test_an_absent_airflow_is_a_retry_error(taken_port: int) -> None:
    from pipeline.run.airflow_api import AirflowApi

    with socket.socket() as free:
        free.bind((LOOPBACK, 0))
        port = free.getsockname()[1]
    with pytest.raises(RetryError, match="does not answer"):
        AirflowApi(f"http://{LOOPBACK}:{port}").health()
