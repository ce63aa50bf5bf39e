"""The Kubernetes example: every field is one that the API knows, and its parts agree."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((Path(__file__).parent / "jobset.schema.json").read_text())
VERSION = "1.33"


def documents() -> tuple[dict[str, Any], ...]:
    return tuple(yaml.safe_load_all((ROOT / "deploy/kubernetes/pretrain.yaml").read_text()))


def check_jobset(jobset: dict[str, Any]) -> None:
    """JobSet's own fields by its schema; its jobs as jobs, strictly: no unknown field."""
    jsonschema.validate(jobset, SCHEMA)
    for replicated in jobset["spec"]["replicatedJobs"]:
        job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": replicated["name"]}}
        template = replicated["template"]
        kubernetes_validate.validate(job | {"spec": template["spec"]}, VERSION, strict=True)


def container(jobset: dict[str, Any]) -> dict[str, Any]:
    template = jobset["spec"]["replicatedJobs"][0]["template"]
    found: dict[str, Any] = template["spec"]["template"]["spec"]["containers"][0]
    return found


def test_the_example_is_valid():
    jobset, claim = documents()
    check_jobset(jobset)
    kubernetes_validate.validate(claim, VERSION, strict=True)


def test_hosts_find_each_other():
    jobset, claim = documents()
    [replicated] = jobset["spec"]["replicatedJobs"]
    job, command = replicated["template"]["spec"], container(jobset)["command"]
    assert f"--hosts={job['parallelism']}" in command
    assert job["parallelism"] == job["completions"]
    first = f"{jobset['metadata']['name']}-{replicated['name']}-0-0"
    assert f"--first={first}.{jobset['spec']['network']['subdomain']}" in command
    volumes = {v["name"]: v for v in job["template"]["spec"]["volumes"]}
    assert {m["name"] for m in container(jobset)["volumeMounts"]} == set(volumes)
    claimed = volumes["home"]["persistentVolumeClaim"]["claimName"]
    assert claimed == claim["metadata"]["name"]
    names = {variable["name"] for variable in container(jobset)["env"]}
    assert {"RUN", "JOB_COMPLETION_INDEX"} <= names


def test_a_field_that_jobset_lacks_is_found():
    jobset = copy.deepcopy(documents()[0])
    jobset["spec"]["network"]["enableDnsHostnames"] = True
    with pytest.raises(jsonschema.ValidationError, match="enableDnsHostnames"):
        check_jobset(jobset)


def test_a_field_that_a_pod_lacks_is_found():
    jobset = copy.deepcopy(documents()[0])
    container(jobset)["volumeMount"] = []
    with pytest.raises(kubernetes_validate.ValidationError, match="volumeMount"):
        check_jobset(jobset)
