"""Where local servers listen, their generated credentials, and the environment of tasks."""

from __future__ import annotations

import base64
import json
import os
import secrets
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

from pipeline.run.errors import ConfigError, RetryError
from pipeline.run.paths import REPOSITORY, home

LOOPBACK = "127.0.0.1"
USER = "admin"
PORTS = {"airflow": ("HEADWATER_AIRFLOW_PORT", 8080), "mlflow": ("HEADWATER_MLFLOW_PORT", 5000)}


@dataclass(frozen=True, kw_only=True)
class Credentials:
    """Secrets of the local servers; made once, kept in a git-ignored file that only we read."""

    password: str
    jwt_secret: str
    api_secret: str
    fernet_key: str


@dataclass(frozen=True, kw_only=True)
class Ports:
    """Ports on loopback."""

    airflow: int
    mlflow: int

    @property
    def airflow_url(self) -> str:
        """Address of the Airflow UI and API."""
        return f"http://{LOOPBACK}:{self.airflow}"

    @property
    def mlflow_url(self) -> str:
        """Address of the MLflow UI and tracking server."""
        return f"http://{LOOPBACK}:{self.mlflow}"


def state_folder() -> Path:
    """Folder of credentials, state and logs of the local servers."""
    return home() / ".headwater"


def airflow_home() -> Path:
    """AIRFLOW_HOME of the local Airflow."""
    return home() / ".airflow"


def credentials() -> Credentials:
    """The generated credentials, made at the first call."""
    path = state_folder() / "credentials.json"
    if not path.is_file():
        made = Credentials(
            password=secrets.token_urlsafe(18),
            jwt_secret=secrets.token_urlsafe(64),
            api_secret=secrets.token_urlsafe(48),
            fernet_key=_fernet_key(),
        )
        _write_private(path, {name: getattr(made, name) for name in made.__dataclass_fields__})
    try:
        return Credentials(**json.loads(path.read_text()))
    except (TypeError, json.JSONDecodeError):
        raise ConfigError(f"{path} is damaged; remove it, new ones are made") from None


def choose_ports() -> Ports:
    """Free ports: the named ones, else the usual ones, else any.

    `RetryError` when a port that HEADWATER_AIRFLOW_PORT or HEADWATER_MLFLOW_PORT names is in use.
    """
    return Ports(airflow=_port("airflow"), mlflow=_port("mlflow"))


def server_environment(ports: Ports, secret: Credentials, *, schedule: bool) -> dict[str, str]:
    """The environment of all local servers, and so of every task."""
    passwords = state_folder() / "airflow_passwords.json"
    _write_private(passwords, {USER: secret.password})
    root = str(REPOSITORY)
    # Every task is a new process: without cached bytecode each would compile what it imports.
    dropped = ("AIRFLOW__API", "PYTHONDONTWRITEBYTECODE")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(dropped)}
    return kept | {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")])),
        "HEADWATER_HOME": str(home()),
        "HEADWATER_SCHEDULE": "on" if schedule else "off",
        "AIRFLOW_HOME": str(airflow_home()),
        "AIRFLOW_CONFIG": str(REPOSITORY / "airflow.cfg"),
        "AIRFLOW__CORE__DAGS_FOLDER": root,
        "AIRFLOW__CORE__FERNET_KEY": secret.fernet_key,
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": f"{USER}:admin",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(passwords),
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{ports.airflow_url}/execution/",
        "AIRFLOW__API__PORT": str(ports.airflow),
        "AIRFLOW__API__BASE_URL": ports.airflow_url,
        "AIRFLOW__API__SECRET_KEY": secret.api_secret,
        "AIRFLOW__API_AUTH__JWT_SECRET": secret.jwt_secret,
        "MLFLOW_TRACKING_URI": ports.mlflow_url,
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "NO_PROXY": ",".join(filter(None, [os.environ.get("NO_PROXY", ""), LOOPBACK])),
        "no_proxy": ",".join(filter(None, [os.environ.get("no_proxy", ""), LOOPBACK])),
    }


def _port(server: str) -> int:
    variable, usual = PORTS[server]
    named = os.environ.get(variable, "")
    if named:
        if not named.isdigit() or not 1024 <= int(named) < 65536:
            raise ConfigError(f"{variable} must be a port from 1024 on, got {named!r}; fix it")
        if not port_free(int(named)):
            raise RetryError(
                f"port {named} is in use; set {variable} to a free one, or unset it to get any"
            )
        return int(named)
    return usual if port_free(usual) else _any_port()


def port_free(port: int) -> bool:
    """Whether a server could listen on the port of the loopback address."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def _any_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return probe.getsockname()[1]


def _fernet_key() -> str:
    return base64.urlsafe_b64encode(secrets.token_bytes(32)).decode()


def _write_private(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(value, file)
    temporary.replace(path)
