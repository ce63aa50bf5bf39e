"""The client of Airflow's API against a server that answers late or not at all."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from pipeline.run import airflow_api
from pipeline.run.airflow_api import AirflowApi
from pipeline.run.errors import RetryError


class Busy(BaseHTTPRequestHandler):
    """Fails as often as `failures` says, then answers with what it was asked."""

    failures = 0
    calls: list[str] = []  # noqa: RUF012  (reset by the fixture)

    def answer(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length) or b"{}")
        if self.path == "/auth/token":
            return self.reply(201, {"access_token": "t"})
        self.calls.append(self.command)
        if len(self.calls) <= self.failures:
            return self.reply(503, {"detail": "busy"})
        return self.reply(200, {"said": body})

    do_GET = do_POST = do_PATCH = answer

    def reply(self, code: int, body: object) -> None:
        self.send_response(code)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *_: object) -> None:
        return None


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[AirflowApi]:
    monkeypatch.setattr(airflow_api.time, "sleep", lambda _: None)
    monkeypatch.setattr(Busy, "calls", [])
    server = ThreadingHTTPServer(("127.0.0.1", 0), Busy)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield AirflowApi(f"http://127.0.0.1:{server.server_port}")
    server.shutdown()
    server.server_close()


def test_what_may_repeat_waits_for_a_busy_server(api, monkeypatch):
    monkeypatch.setattr(Busy, "failures", 2)
    assert api.get_patiently("/dags") == {"said": {}}
    Busy.calls.clear()
    assert api.patch("/dags/a", {"state": "failed"}) == {"said": {"state": "failed"}}
    assert Busy.calls == ["PATCH"] * 3


def test_what_must_not_repeat_fails_at_once(api, monkeypatch):
    monkeypatch.setattr(Busy, "failures", 1)
    with pytest.raises(RetryError, match="POST /api/v2/dags: 503 busy"):
        api.post("/dags", {})
    assert Busy.calls == ["POST"]


def test_patience_ends(api, monkeypatch):
    monkeypatch.setattr(Busy, "failures", 10**6)
    monkeypatch.setattr(airflow_api, "PATIENCE_S", 0.2)
    with pytest.raises(RetryError, match="503 busy"):
        api.patch("/dags/a", {})
    assert len(Busy.calls) > 1
