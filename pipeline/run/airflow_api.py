"""A small client of Airflow's REST API (v2) on loopback."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from typing import Any

from pipeline.run.errors import ConfigError, RetryError

TIMEOUT_S = 60.0
PATIENCE_S = 300.0  # of calls that may repeat: a machine at full load answers late, and is not gone


class AirflowApi:
    """Calls with a bearer token; refusals become `ConfigError`, an absent server `RetryError`."""

    def __init__(self, url: str, user: str = "", password: str = "") -> None:
        self.url, self._user, self._password = url, user, password
        self._token = ""
        # a proxy of the environment must not see loopback traffic
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def health(self) -> dict[str, Any]:
        """State of each component; `RetryError` while the server does not answer."""
        return self._call("GET", "/api/v2/monitor/health", None)

    def execution_health(self) -> dict[str, Any]:
        """State of the API that tasks talk to; its first call builds it, which takes seconds."""
        return self._call("GET", "/execution/health", None)

    def get(self, path: str, **query: object) -> dict[str, Any]:
        """GET /api/v2<path>."""
        text = urllib.parse.urlencode(query, doseq=True)
        return self._authorized("GET", f"/api/v2{path}" + (f"?{text}" if text else ""), None)

    def get_patiently(self, path: str, **query: object) -> dict[str, Any]:
        """`get` that repeats while the server does not answer, for some minutes."""
        return _patiently(lambda: self.get(path, **query))

    def post(self, path: str, body: object) -> dict[str, Any]:
        """POST /api/v2<path>."""
        return self._authorized("POST", f"/api/v2{path}", body)

    def patch(self, path: str, body: object) -> dict[str, Any]:
        """PATCH /api/v2<path>, as patiently: it says the same however often it arrives."""
        return _patiently(lambda: self._authorized("PATCH", f"/api/v2{path}", body))

    def _authorized(self, method: str, path: str, body: object) -> dict[str, Any]:
        if not self._token:
            login = {"username": self._user, "password": self._password}
            self._token = self._call("POST", "/auth/token", login)["access_token"]
        return self._call(method, path, body)

    def _call(self, method: str, path: str, body: object) -> dict[str, Any]:
        request = urllib.request.Request(
            self.url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json", "Accept": "application/json"},
        )
        if self._token:
            request.add_header("Authorization", f"Bearer {self._token}")
        try:
            with self._opener.open(request, timeout=TIMEOUT_S) as response:
                return json.loads(response.read() or b"{}")
        except urllib.error.HTTPError as error:
            raise _refusal(error, f"{method} {path}") from None
        except (OSError, json.JSONDecodeError) as error:
            raise RetryError(f"Airflow at {self.url} does not answer: {error}") from None


def _patiently(call: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return call()
        except RetryError:
            if time.monotonic() > deadline:
                raise
            time.sleep(2.0)


def quoted(text: str) -> str:
    """Text as one part of a path."""
    return urllib.parse.quote(text, safe="")


def _refusal(error: urllib.error.HTTPError, call: str) -> Exception:
    text = error.read().decode(errors="replace")
    try:
        detail = json.loads(text).get("detail", text)
    except json.JSONDecodeError:
        detail = text
    if error.code >= 500:
        return RetryError(f"Airflow failed at {call}: {error.code} {detail}")
    return ConfigError(f"Airflow refused {call}: {error.code} {detail}")
