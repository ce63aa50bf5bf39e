"""Stage `track`: mirror the run folder to MLflow; the only place that imports mlflow.

The folder is the truth and MLflow a view of it, so this may run at any time and again: a run is
found by its folder, metrics carry times that depend on the day alone, and what was logged is
remembered in mlflow.json. MLflow out of reach is a warning, never a failure.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.evaluation import records
from pipeline.evaluation.lineage import read_json
from pipeline.run.codec import digest, to_dict
from pipeline.run.manifest import (
    Manifest,
    Outcome,
    code_version,
    fingerprint_of,
    need_manifest,
    produce,
    read_manifest,
    write_json,
)
from pipeline.run.paths import Run
from pipeline.run.window import DAY_US, day_begin_us

if TYPE_CHECKING:
    from mlflow import MlflowClient

log = logging.getLogger(__name__)
PRIMARY = {
    "foundation": "eval/ne/overall/click",
    "solaris": "coverage/asked/exact",
    "students": "",
    "scaling-law": "",
}
EXPERIMENTS = tuple(PRIMARY)
MEMORY = "mlflow.json"
FOLDER_TAG = "headwater.run_folder"
FINGERPRINT_TAG = "fingerprint"
METRICS_PER_CALL, DIGEST_LENGTH = 1_000, 36


class _UnreachableError(Exception):
    """MLflow did not answer or refused; nothing was published."""


@dataclass(frozen=True, kw_only=True)
class _Target:
    """One MLflow run that mirrors one experiment's part of a run folder."""

    client: MlflowClient
    run: Run
    experiment: str
    run_id: str


def track(run: Run, unit: str = "") -> Manifest:
    """Log what is finished and not logged yet; returns an unpublished manifest without MLflow."""
    present = {e: records.fingerprints(run, e) for e in EXPERIMENTS}
    inputs = {f"{e}:{name}": value for e in EXPERIMENTS for name, value in present[e].items()}

    def build(folder: Path) -> Outcome:
        logged = {e: fingerprint_of(parts) for e, parts in present.items() if parts}
        _mirror(run, logged)
        write_json(folder / "track.json", logged)
        return Outcome(rows=len(logged))

    target = run.output("track")
    try:
        return produce(target, stage="track", inputs=inputs, settings=[], build=build)
    except _UnreachableError as error:
        log.warning(
            "MLflow at %s cannot be used: %s; nothing is lost, start it (make up) and run: "
            "python -m pipeline track --run %s",
            tracking_uri(run),
            error,
            run.folder,
        )
        return Manifest(
            stage="track", unit="", files=(), rows=0, fingerprint="", inputs=(),
            config_hash="", code_version=code_version(), seconds=0.0,
        )  # fmt: skip


def tracking_uri(run: Run) -> str:
    """$MLFLOW_TRACKING_URI, else the database that the local server serves."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{_folder(run) / 'mlflow.db'}"


def _mirror(run: Run, wanted: dict[str, str]) -> None:
    """Log every experiment whose fingerprint differs from what mlflow.json remembers."""
    memory_path = run.inside(MEMORY)
    memory = json.loads(memory_path.read_text()) if memory_path.is_file() else {}
    client = _connect(run)
    from mlflow.exceptions import MlflowException

    try:
        for experiment, fingerprint in wanted.items():
            known = memory.get(experiment, {})
            run_id = _run_id(client, run, experiment, known.get("run_id"))
            if known.get("logged") == fingerprint and known.get("run_id") == run_id:
                continue
            attempt = known.get("attempt", -1) + 1
            memory[experiment] = {"run_id": run_id, "attempt": attempt - 1, "logged": ""}
            write_json(memory_path, memory)
            target = _Target(client=client, run=run, experiment=experiment, run_id=run_id)
            _log_all(target, attempt)
            memory[experiment] = {"run_id": run_id, "attempt": attempt, "logged": fingerprint}
            write_json(memory_path, memory)
    except (MlflowException, OSError) as error:
        raise _UnreachableError(str(error)) from error


def _connect(run: Run) -> MlflowClient:
    uri = tracking_uri(run)
    if uri.startswith("http"):
        import requests

        try:
            requests.get(f"{uri.rstrip('/')}/health", timeout=5).raise_for_status()
        except requests.RequestException as error:
            raise _UnreachableError(str(error)) from error
    for name, value in (("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2"), ("GIT_PYTHON_REFRESH", "quiet")):
        os.environ.setdefault(name, value)
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)
    _folder(run).mkdir(parents=True, exist_ok=True)
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        client = MlflowClient(tracking_uri=uri, registry_uri=uri)
        client.search_experiments(max_results=1)
    except (MlflowException, SQLAlchemyError, OSError) as error:
        raise _UnreachableError(str(error).splitlines()[0]) from error
    return client


def _run_id(client: MlflowClient, run: Run, experiment: str, known: str | None) -> str:
    """The MLflow run of this folder: remembered, else found by its tag, else made."""
    found = client.get_experiment_by_name(experiment)
    experiment_id = found.experiment_id if found else _create_experiment(client, run, experiment)
    tag = str(run.folder.relative_to(run.home))
    matches = client.search_runs([experiment_id], f"tags.`{FOLDER_TAG}` = '{tag}'")
    ids = [match.info.run_id for match in matches]
    if known and known in ids:
        return known
    if ids:
        return ids[0]
    name = f"{run.config.day} · {run.config.size} · {code_version()}"
    made = client.create_run(
        experiment_id, start_time=_time(run, 0), tags={FOLDER_TAG: tag}, run_name=name
    )
    return made.info.run_id


def _create_experiment(client: MlflowClient, run: Run, experiment: str) -> str:
    local = tracking_uri(run).startswith("sqlite")
    location = (_folder(run) / "artifacts" / experiment).as_uri() if local else None
    experiment_id = client.create_experiment(experiment, artifact_location=location)
    if PRIMARY[experiment]:
        client.set_experiment_tag(
            experiment_id, "mlflow.experiment.primaryMetric.name", PRIMARY[experiment]
        )
        client.set_experiment_tag(
            experiment_id, "mlflow.experiment.primaryMetric.greaterIsBetter", "False"
        )
    return experiment_id


def _log_all(target: _Target, attempt: int) -> None:
    from mlflow.entities import Metric, Param, RunTag

    run, client, run_id = target.run, target.client, target.run_id
    params = [Param(k, v) for k, v in records.params(run.config).items()]
    client.log_batch(run_id, params=params, tags=[RunTag(k, v) for k, v in _tags(target).items()])
    when = _time(run, attempt)
    steps = [Metric(k, v, when, step) for k, step, v in records.metrics(run, target.experiment)]
    for begin in range(0, len(steps), METRICS_PER_CALL):
        client.log_batch(run_id, metrics=steps[begin : begin + METRICS_PER_CALL])
    client.log_dict(run_id, to_dict(run.config), "config.json")
    with tempfile.TemporaryDirectory() as folder:
        for name, content in records.pictures(run, target.experiment).items():
            (Path(folder) / name).write_bytes(content)
        if any(Path(folder).iterdir()):
            client.log_artifacts(run_id, folder, "figures")
    _log_datasets(target)
    _register(target)
    client.set_terminated(run_id, "FINISHED", end_time=when)


def _tags(target: _Target) -> dict[str, str]:
    config, env = target.run.config, os.environ
    tags = {
        "day": config.day,
        "size": config.size,
        "source": config.source.name,
        "stage": target.experiment,
        "lineage": config.lineage,
        "config_hash": digest(config),
        "code_version": code_version(),
        "parent": config.parent.folder if config.parent else "",
        "dag_id": env.get("AIRFLOW_CTX_DAG_ID", ""),
        "dag_run_id": env.get("AIRFLOW_CTX_DAG_RUN_ID", ""),
        "try_number": env.get("AIRFLOW_CTX_TRY_NUMBER", ""),
    }
    decision = read_json(target.run, "promote", "decision.json")
    if decision:
        tags["decision"] = decision["decision"]
    return {name: value for name, value in tags.items() if value}


def _log_datasets(target: _Target) -> None:
    """What the run read, under our own fingerprints: MLflow's digest reads the first rows only."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    manifest = read_manifest(target.run.output("mix"), missing_ok=True)
    if manifest is None:
        return
    dataset = Dataset(
        name=target.run.config.dataset,
        digest=manifest.fingerprint[:DIGEST_LENGTH],
        source_type="local",
        source=json.dumps({"uri": str(target.run.output("mix"))}),
        profile=json.dumps({"rows": manifest.rows, "fingerprint": manifest.fingerprint}),
    )
    tags = [InputTag("mlflow.data.context", "training")]
    target.client.log_inputs(target.run_id, [DatasetInput(dataset=dataset, tags=tags)])


def _register(target: _Target) -> None:
    """Registry versions of what was decided upon; aliases move last."""
    run = target.run
    if target.experiment == "foundation":
        decision = read_json(run, "promote", "decision.json")
        if decision:
            fingerprint = need_manifest(run.output("pretrain")).fingerprint
            won = decision["decision"] in {"promoted", "forced"}
            _version(target, "foundation", run.output("pretrain") / "model", fingerprint, won)
    if target.experiment == "students":
        decided = read_json(run, "promote_students", "decision.json") or {"surfaces": {}}
        for surface, decision in decided["surfaces"].items():
            folder = run.output("transfer", surface)
            won = decision["decision"] in {"promoted", "forced"}
            fingerprint = need_manifest(folder).fingerprint
            model = folder / "arms" / run.config.transfer.serves
            _version(target, f"student-{surface}", model, fingerprint, won)


def _version(target: _Target, name: str, model: Path, fingerprint: str, won: bool) -> None:
    client, day = target.client, target.run.config.day
    if not client.search_registered_models(f"name = '{name}'"):
        client.create_registered_model(name)
    versions = client.search_model_versions(f"name = '{name}'")
    mine = [v for v in versions if v.tags.get(FINGERPRINT_TAG) == fingerprint]
    if mine:
        version = mine[0]
    else:
        if model.is_dir():
            client.log_artifacts(target.run_id, str(model), name)
        source = f"{client.get_run(target.run_id).info.artifact_uri}/{name}"
        tags = {FINGERPRINT_TAG: fingerprint, "day": day, "lineage": target.run.config.lineage}
        version = client.create_model_version(name, source, target.run_id, tags=tags)
    _move(client, name, "challenger", version)
    if won:
        _move(client, name, "champion", version)


def _move(client: MlflowClient, name: str, alias: str, version: Any) -> None:
    """Point an alias at `version`, unless it names a version of a later day already."""
    aliases = client.get_registered_model(name).aliases
    if alias in aliases:
        holder = client.get_model_version(name, str(aliases[alias]))
        if holder.tags.get("day", "") > version.tags.get("day", ""):
            return
    client.set_registered_model_alias(name, alias, version.version)


def _folder(run: Run) -> Path:
    return run.home / ".mlflow"


def _time(run: Run, attempt: int) -> int:
    """Milliseconds; the same for the same day and attempt, so that logging again adds nothing."""
    return (day_begin_us(run.config.day) + DAY_US) // 1_000 + attempt * 1_000
