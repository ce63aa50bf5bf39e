import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_scaling_fit import ladder

from pipeline.evaluation import records
from pipeline.evaluation.scaling_fit import fit_ladder
from pipeline.evaluation.tracking import track
from pipeline.run.codec import to_dict
from pipeline.run.config import RunConfig
from pipeline.run.manifest import Outcome, produce, write_json
from pipeline.run.paths import Run, open_run, run_folder
from pipeline.run.presets import preset

mlflow = pytest.importorskip("mlflow")


def triple(value: float) -> dict[str, float]:
    return {"value": value, "low": value - 0.01, "high": value + 0.01}


def measured(ne: float) -> dict[str, Any]:
    cell = {
        "rows": 100,
        "positives": 20,
        "challenger": {
            "ne": triple(ne),
            "auc": triple(0.7),
            "calibration": triple(1.0),
            "gauc": 0.6,
            "curve": [[0.1, 0.1, 50.0], [0.2, 0.3, 50.0]],
        },
    }
    return {
        "overall": {"click": cell},
        "surfaces": {"feed": {"click": cell}},
        "champion": None,
        "draws": 10,
        "num_rows": 100,
        "slices": {},
    }


def publish(run: Run, stage: str, files: dict[str, str], rows: int = 1) -> None:
    def build(folder: Path) -> Outcome:
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        return Outcome(rows=rows)

    produce(run.inside(*stage.split("/")), stage=stage, inputs={}, settings=[files], build=build)


def make_run(home: Path, day: str, ne: float = 0.9, decision: str = "promoted") -> Run:
    config: RunConfig = preset(day, "smoke")
    folder = run_folder(config, home)
    folder.mkdir(parents=True)
    write_json(folder / "run.json", to_dict(config))
    run = open_run(folder)
    publish(run, "mix", {"train/a": "x"}, rows=500)
    lines = "\n".join(json.dumps({"step": s, "loss": 1 / (s + 1), "ne": 1.0}) for s in range(5))
    publish(run, "pretrain", {"metrics.jsonl": lines, "model/meta.json": json.dumps({"day": day})})
    publish(run, "evaluate", {"metrics.json": json.dumps(measured(ne))})
    publish(run, "promote", {"decision.json": json.dumps({"decision": decision})})
    return run


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated, empty database: its migrations take longer than all tests on it."""
    path = tmp_path_factory.mktemp("database") / "mlflow.db"
    mlflow.MlflowClient(tracking_uri=f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def client(database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    shutil.copy(database, tmp_path / "mlflow.db")
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    return mlflow.MlflowClient(tracking_uri=uri, registry_uri=uri)


def runs_of(client: Any, experiment: str) -> list[Any]:
    found = client.get_experiment_by_name(experiment)
    return list(client.search_runs([found.experiment_id])) if found else []


def test_a_run_is_mirrored_once_and_grows_with_its_folder(client: Any, tmp_path: Path) -> None:
    run = make_run(tmp_path, "2026-03-05")
    track(run)
    (found,) = runs_of(client, "foundation")
    assert runs_of(client, "students") == []
    assert found.info.run_name.startswith("2026-03-05 · smoke · ")
    assert found.info.status == "FINISHED"
    assert found.data.params["mix.alpha"] == "0.7"
    assert 30 <= len(found.data.params) <= 60
    assert found.data.metrics["eval/ne/feed/click"] == 0.9
    assert found.data.metrics["final/loss"] == pytest.approx(0.2)
    assert found.data.tags["decision"] == "promoted"
    history = client.get_metric_history(found.info.run_id, "train/loss")
    assert [(m.step, m.value) for m in history] == [(s, 1 / (s + 1)) for s in range(5)]
    names = {a.path for a in client.list_artifacts(found.info.run_id)}
    assert {"config.json", "figures", "foundation"} <= names
    (dataset,) = found.inputs.dataset_inputs
    assert dataset.dataset.name == run.config.dataset

    track(run)  # nothing new: nothing logged
    assert len(client.get_metric_history(found.info.run_id, "train/loss")) == 5
    assert len(client.search_model_versions("name = 'foundation'")) == 1

    table = {
        "rows": [{"surface": "feed", "objective": "click", "arm": "kd", "ne": [0.8, 0.7, 0.9]}]
    }
    publish(run, "evaluate_students", {"table.json": json.dumps(table)})
    track(run)
    (student,) = runs_of(client, "students")
    assert student.data.metrics == {"eval/ne/feed/click/kd": 0.8}
    assert len(runs_of(client, "foundation")) == 1
    assert len(client.get_metric_history(found.info.run_id, "train/loss")) == 5


def test_a_lost_memory_finds_the_run_by_its_folder(client: Any, tmp_path: Path) -> None:
    run = make_run(tmp_path, "2026-03-05")
    track(run)
    run.inside("mlflow.json").unlink()
    (run.output("track") / "manifest.json").unlink()
    track(run)
    (found,) = runs_of(client, "foundation")
    assert len(client.get_metric_history(found.info.run_id, "train/loss")) == 5
    assert len(client.search_model_versions("name = 'foundation'")) == 1


def test_aliases_follow_decisions_and_never_go_back_in_days(client: Any, tmp_path: Path) -> None:
    first = make_run(tmp_path, "2026-03-05")
    third = make_run(tmp_path, "2026-03-07", decision="kept")
    second = make_run(tmp_path, "2026-03-06")
    for run in (first, third, second):
        track(run)
    champion = client.get_model_version_by_alias("foundation", "champion")
    challenger = client.get_model_version_by_alias("foundation", "challenger")
    assert champion.tags["day"] == "2026-03-06"
    assert challenger.tags["day"] == "2026-03-07"
    local = mlflow.artifacts.download_artifacts(
        champion.source, tracking_uri=os.environ["MLFLOW_TRACKING_URI"]
    )
    assert json.loads((Path(local) / "meta.json").read_text()) == {"day": "2026-03-06"}


def test_out_of_reach_is_a_warning_and_the_next_call_catches_up(
    client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = make_run(tmp_path, "2026-03-05")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    manifest = track(run)
    assert manifest.rows == 0
    assert "python -m pipeline track --run" in caplog.text
    assert not run.output("track").exists()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    track(run)
    assert len(runs_of(client, "foundation")) == 1


def test_an_empty_run_folder_is_fine(client: Any, tmp_path: Path) -> None:
    config = preset("2026-03-05", "smoke")
    folder = run_folder(config, tmp_path)
    folder.mkdir(parents=True)
    write_json(folder / "run.json", to_dict(config))
    assert track(open_run(folder)).rows == 0


def test_records_leave_out_what_is_not_a_number(tmp_path: Path) -> None:
    run = make_run(tmp_path, "2026-03-05")
    publish(run, "replay", {"coverage.json": json.dumps({"asked": {"exact": 0.4, "none": None}})})
    assert records.metrics(run, "solaris") == [("coverage/asked/exact", 0, 0.4)]


@pytest.fixture
def server(database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    folder = tmp_path / "server"
    folder.mkdir()
    shutil.copy(database, folder / "mlflow.db")
    command = [
        str(Path(sys.executable).parent / "mlflow"), "server", "--host", "127.0.0.1",
        "--port", str(port), "--workers", "1",
        "--backend-store-uri", f"sqlite:///{folder / 'mlflow.db'}",
        "--artifacts-destination", str(folder / "artifacts"),
    ]  # fmt: skip
    process = subprocess.Popen(
        command,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
    )
    uri = f"http://127.0.0.1:{port}"
    try:
        _wait(f"{uri}/health", process)
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        yield uri
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(timeout=30)


def _wait(url: str, process: subprocess.Popen[bytes]) -> None:
    for _ in range(1_500):
        if process.poll() is not None:
            pytest.fail(f"mlflow server ended with {process.returncode}")
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except OSError:
            time.sleep(0.2)
    pytest.fail(f"{url} did not answer")


def test_through_a_real_server(server: str, tmp_path: Path) -> None:
    run = make_run(tmp_path, "2026-03-05")
    track(run)
    track(run)
    remote = mlflow.MlflowClient(tracking_uri=server, registry_uri=server)
    (found,) = runs_of(remote, "foundation")
    assert found.data.metrics["eval/ne/overall/click"] == 0.9
    champion = remote.get_model_version_by_alias("foundation", "champion")
    local = mlflow.artifacts.download_artifacts(champion.source, tracking_uri=server)
    assert (Path(local) / "meta.json").is_file()


def test_a_ladder_has_an_experiment_of_its_own(client: Any, tmp_path: Path) -> None:
    config = preset("2026-03-05", "smoke", "scaling")
    folder = run_folder(config, tmp_path)
    folder.mkdir(parents=True)
    write_json(folder / "run.json", to_dict(config))
    run = open_run(folder)
    results = [r for arch in ("kunlun", "interformer") for r in ladder(arch, 0.01, seeds=1)]
    fit = {"missing": [], "labels": {"soft": fit_ladder(results, draws=20)}}
    publish(run, "scaling_fit", {"fit.json": json.dumps(fit)})
    track(run)
    (found,) = runs_of(client, "scaling-law")
    assert found.data.metrics["scaling/soft/eta/kunlun"] == pytest.approx(0.01, abs=0.002)
    assert "scaling/soft/slope_ratio/interformer" in found.data.metrics
    history = client.get_metric_history(found.info.run_id, "scaling/soft/ne/kunlun")
    assert [m.step for m in history] == [0, 1, 2, 3, 4]
    assert [a.path for a in client.list_artifacts(found.info.run_id, "figures")] == [
        "figures/law.png"
    ]
    assert runs_of(client, "foundation") == []
