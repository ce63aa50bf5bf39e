"""A sweep of one setting at a time around a config's own: norms, initialisation, rates, warm-up.

Every setting is trained with the same seeds on the same rows. A difference to the config's own
setting has an interval over seeds alone (Student's t), so that few seeds claim little.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from scipy.stats import t as student

from benchmarks._experiments import replace_section, table
from benchmarks._trials import World, error_of, run_changed
from pipeline.run.paths import Run

OWN = "own"
HEAD = ("arch", "axis", "setting", "NE against the truth, by seed", "above own", "")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One point of an axis: its name and the fields that it changes."""

    axis: str
    name: str
    changes: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Swept:
    """A setting of an arch and its error by seed."""

    arch: str
    setting: Setting
    errors: tuple[float, ...]


def settings(dense_lr: float) -> list[Setting]:
    """The config's own settings, then the others; what an arch does not read changes nothing."""
    values: dict[str, dict[str, dict[str, Any]]] = {
        "norm": {
            "none before Summarize": {"model.summarize_norm": False},
            "QK-norm in GDPA": {"model.qk_norm": True},
        },
        "initial weights": {
            "embedding sd .05": {"model.embedding_init_sd": 0.05},
            "embedding sd 1": {"model.embedding_init_sd": 1.0},
            "random residual": {"model.residual_init": "random"},
        },
        "tables' rate / dense rate": {
            str(ratio): {"train.sparse_lr": ratio * dense_lr} for ratio in (1, 3, 30)
        },
        "warm-up steps": {str(steps): {"train.warmup_steps": steps} for steps in (0, 20, 100)},
    }
    found = [Setting(axis=OWN, name=OWN, changes={})]
    for axis, points in values.items():
        found += [Setting(axis=axis, name=name, changes=c) for name, c in points.items()]
    return found


def sweep(base: Run, archs: Sequence[str], seeds: int) -> list[Swept]:
    """Train every setting with every seed; a line of JSON each."""
    found = []
    for arch in archs:
        for setting in settings(base.config.train.dense_lr):
            errors = []
            for seed in range(seeds):
                changes = {"model.arch": arch, "train.seed": seed, **setting.changes}
                trial = run_changed(base, changes)
                print(json.dumps({"arch": arch, "setting": setting.name} | trial), flush=True)
                errors.append(error_of(trial))
            found.append(Swept(arch=arch, setting=setting, errors=tuple(errors)))
    return found


def defaults(found: Sequence[Swept]) -> list[tuple[str, float]]:
    """The mean error of each arch at the config's own settings."""
    return [(s.arch, fmean(s.errors)) for s in found if s.setting.axis == OWN]


def record_sweep(path: Path, found: Sequence[Swept], world: World, quick: bool) -> None:
    """Renew the sweep's table."""
    own = {s.arch: s.errors for s in found if s.setting.axis == OWN}
    rows = [
        [
            *(s.arch, s.setting.axis, s.setting.name),
            " ".join(f"{e:.4f}" for e in s.errors),
            *above(s.errors, own[s.arch]),
        ]
        for s in found
    ]
    head = (
        "### Sweep of norms, initial weights, rates and warm-up\n\n"
        f"`python -m benchmarks.tuning --axes{' --quick' if quick else ''}`: planted logs of "
        f"{world.days} days at {world.rows_per_day} impressions, one pass, one setting changed at "
        "a time; scored on hours that were not yet trained on.\n\n"
    )
    replace_section(path, "tuning axes", head + table(HEAD, rows))


def above(errors: Sequence[float], own: Sequence[float]) -> list[str]:
    """The mean difference over seeds with its 95% interval, and whether it says anything."""
    apart = np.asarray(errors) - np.asarray(own)
    if not apart.any():
        return ["0", ""]
    if len(apart) < 2:
        return [f"{apart[0]:+.4f}", "one seed says nothing"]
    reach = student.ppf(0.975, len(apart) - 1) * apart.std(ddof=1) / len(apart) ** 0.5
    mean = float(apart.mean())
    verdict = "within noise" if abs(mean) <= reach else "worse" if mean > 0 else "better"
    return [f"{mean:+.4f} +- {reach:.4f}", verdict]
