"""Who may import whom (docs/architecture.md), checked on the syntax tree of every file."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("kernels", "data_contracts", "model", "pipeline", "dags", "benchmarks")
ALLOWED = {
    "kernels": ("kernels",),
    "data_contracts": ("data_contracts",),
    "model": ("model", "kernels", "data_contracts.schema"),
    "pipeline": ("pipeline", "model", "kernels", "data_contracts"),
    "dags": ("dags", "pipeline.run"),
    "benchmarks": ("benchmarks", "pipeline", "model", "kernels", "data_contracts"),
}
FLOORS = {"run": 0, "mixing": 1, "evaluation": 2, "pretraining": 3, "loopfm": 3, "solaris": 4}
TOP = 5  # __main__, doctor
STDLIB_ONLY = (
    "model/__init__.py",
    "model/baselines/__init__.py",
    "model/baselines/flops.py",
    "model/baselines/widths.py",
    "model/budgets.py",
    "model/config.py",
    "model/flops.py",
    "model/flops_layers.py",
    "model/footprint.py",
    "model/layout.py",
    "model/shape.py",
    "model/sizes.py",
    "pipeline/run/",
)
# what they may import of ours is what this same rule holds for
PLAIN = tuple(p.removesuffix(".py").rstrip("/").replace("/", ".") for p in STDLIB_ONLY)
LAZY_IN_RUN = ("rich", "requests")


def imports(source: str, package: str) -> Iterator[tuple[str, bool]]:
    """Every imported module of a file and whether it is imported at the top of the file."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        top = node in tree.body
        if isinstance(node, ast.Import):
            yield from ((alias.name, top) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                base = package.split(".")[: len(package.split(".")) - node.level + 1]
                yield ".".join([*base, node.module or ""]).strip("."), top
            else:
                # `from a import b` may name a module
                yield node.module or "", top
                yield from ((f"{node.module}.{alias.name}", top) for alias in node.names)


def violations(path: str, source: str) -> list[str]:
    """What a file at `path` (relative to the repository) imports against the rules."""
    parts = path.removesuffix(".py").split("/")
    package = parts[0]
    found = []
    for name, top in imports(source, ".".join(parts[:-1])):
        root = name.split(".")[0]
        if root in PACKAGES:
            if not _allowed(name, ALLOWED[package]):
                found.append(f"{path} imports {name}")
            elif package == root == "pipeline" and not _below(parts, name):
                found.append(f"{path} imports {name}, which is not on a floor below")
        if root == "mlflow" and path not in ("pipeline/evaluation/tracking.py",):
            found.append(f"{path} imports {name}: tracking.py alone talks to MLflow")
        if package == "dags" and root not in (*sys.stdlib_module_names, "airflow", *PACKAGES):
            found.append(f"{path} imports {name}")
        if root == "airflow" and (package != "dags" or not name.startswith("airflow.sdk")):
            found.append(f"{path} imports {name}")
        if path.startswith(STDLIB_ONLY):
            ours = name.startswith(PLAIN) or name in ("pipeline", "model")
            lazy = not top and root in LAZY_IN_RUN
            if not (ours or lazy or root in sys.stdlib_module_names):
                found.append(f"{path} imports {name} and is standard library only")
    return found


def _allowed(name: str, prefixes: tuple[str, ...]) -> bool:
    return any(name == p or name.startswith(f"{p}.") or p.startswith(f"{name}.") for p in prefixes)


def _below(parts: list[str], name: str) -> bool:
    target = name.split(".")
    if len(target) < 2 or target[1] not in FLOORS:
        return True
    mine = FLOORS.get(parts[1], TOP)
    return parts[1] == target[1] or FLOORS[target[1]] < mine


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_follow_the_rules(package: str) -> None:
    found = []
    for path in sorted((ROOT / package).rglob("*.py")):
        found += violations(str(path.relative_to(ROOT)), path.read_text())
    assert found == []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("kernels/a.py", "from model.config import ModelConfig"),
        ("model/a.py", "from data_contracts.impressions import suite"),
        ("model/a.py", "def f():\n    import pipeline.run.paths"),
        ("pipeline/mixing/a.py", "from pipeline.evaluation.metrics import auc"),
        ("pipeline/loopfm/a.py", "from pipeline.pretraining import pretrain"),
        ("pipeline/run/a.py", "import numpy"),
        ("pipeline/run/a.py", "import requests"),
        ("pipeline/run/a.py", "from ..mixing import loader"),
        ("pipeline/evaluation/report.py", "import mlflow"),
        ("pipeline/run/a.py", "from airflow.sdk import DAG"),
        ("dags/a.py", "from airflow.models import DagRun"),
        ("dags/a.py", "from pipeline.mixing import loader"),
        ("dags/a.py", "import polars"),
        ("model/flops.py", "import torch"),
        ("model/flops.py", "from model.baselines.din import DIN"),
        ("model/sizes.py", "from model.kunlun import Kunlun"),
        ("pipeline/run/a.py", "from model.foundation import FoundationModel"),
    ],
)
def test_a_wrong_import_is_found(path: str, source: str) -> None:
    assert violations(path, source)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("model/a.py", "from data_contracts.schema import IMPRESSIONS\nimport torch"),
        ("pipeline/run/a.py", "def f():\n    from rich.console import Console"),
        ("pipeline/solaris/a.py", "from pipeline.loopfm.codes import pack"),
        ("pipeline/run/a.py", "from model.sizes import model_config"),
        ("pipeline/evaluation/tracking.py", "import mlflow"),
        ("dags/a.py", "from airflow.sdk import DAG\nfrom pipeline.run.runs import units"),
    ],
)
def test_a_right_import_passes(path: str, source: str) -> None:
    assert violations(path, source) == []
