"""What a run says about itself in plain numbers: parameters, metrics and figures for tracking.

Everything is read from the run folder's files; a stage that has not run yields nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from pipeline.evaluation import figures
from pipeline.evaluation.intervals import triple
from pipeline.evaluation.lineage import read_json
from pipeline.run.codec import to_dict
from pipeline.run.config import OVERALL, RunConfig
from pipeline.run.manifest import read_manifest
from pipeline.run.paths import Run

# Sections whose scalar fields people vary from run to run.
SECTIONS = ("window", "mix", "model", "train", "transfer", "solaris", "evaluation")
STAGES = {
    "foundation": ("mix", "mixture_contract", "pretrain", "evaluate", "promote"),
    "solaris": ("represent", "precompute", "publish", "replay"),
    "students": ("as_served", "transfer", "evaluate_students", "promote_students"),
    "scaling-law": ("scaling_fit",),
}
VARIED = {
    "window": ("bootstrap_days", "holdout_hours", "student_days", "num_buckets"),
    "mix": ("budget", "alpha", "correction"),
    "model": (
        "embedding_dim", "width", "layers", "heads", "summary_tokens", "seeds", "wukong_experts",
        "attention", "compskip", "representation_dim",
    ),
    "train": ("batch_size", "dense_lr", "sparse_lr", "ema_decay", "epochs", "zero_stage", "seed"),
    "transfer": ("serves", "quantization", "sequence_len", "kd_gamma", "kd_alpha", "lr", "seeds"),
    "solaris": ("ttl_hours", "vectors_per_request", "tick_minutes", "num_shards"),
    "evaluation": ("bootstrap_draws", "primary_objective", "max_worse_pct"),
}  # fmt: skip
Step = tuple[str, int, float]


def fingerprints(run: Run, experiment: str) -> dict[str, str]:
    """Fingerprint of every finished output of the experiment's stages, by "stage[/unit]"."""
    found = {}
    for stage in STAGES[experiment]:
        folders = [run.output(stage), *sorted(run.output(stage).glob("*/"))]
        for folder in folders:
            manifest = read_manifest(folder, missing_ok=True) if folder.is_dir() else None
            if manifest:
                found[str(folder.relative_to(run.folder))] = manifest.fingerprint
    return found


def params(config: RunConfig) -> dict[str, str]:
    """The parameters that people vary, flattened: "mix.alpha" -> "0.7"."""
    tree = to_dict(config)
    flat = {f"{s}.{name}": tree[s][name] for s, names in VARIED.items() for name in names}
    flat |= {
        "day": config.day,
        "size": config.size,
        "source": config.source.name,
        "surfaces": ",".join(config.surfaces),
        "objectives": ",".join(o.name for o in config.objectives),
        "warm_start": config.warm_start and config.parent is not None,
        "promote": config.promote,
    }
    return {name: str(value) for name, value in sorted(flat.items())}


def metrics(run: Run, experiment: str) -> list[Step]:
    """(name, step, value) of everything that the experiment's stages measured."""
    sources = {
        "foundation": (_training, _evaluation),
        "solaris": (_coverage,),
        "students": (_students,),
        "scaling-law": (_scaling,),
    }
    found = [step for source in sources[experiment] for step in source(run)]
    return [step for step in found if _finite(step[2])]


def pictures(run: Run, experiment: str) -> dict[str, bytes]:
    """PNG figures by file name."""
    law = read_json(run, "scaling_fit", "fit.json") if experiment == "scaling-law" else None
    if law:
        return {"law.png": figures.law_figure(law["labels"], "png")}
    if experiment != "foundation":
        return {}
    found: dict[str, bytes] = {}
    measured = read_json(run, "evaluate", "metrics.json")
    if measured:
        found["ne_by_surface.png"] = figures.spread_figure(
            ne_rows(run, measured), "NE by surface and objective", "NE", "png", reference=1.0
        )
        for objective, cell in measured["overall"].items():
            found[f"calibration_{objective}.png"] = figures.calibration_figure(
                {m: cell[m]["curve"] for m in ("challenger", "champion") if m in cell},
                f"Calibration, {objective}",
                "png",
            )
    curve = training_curve(run)
    if curve:
        found["loss.png"] = figures.curve_figure(curve, "Training loss", ("step", "loss"), "png")
    mix = mix_shares(run)
    if mix:
        found["mix_shares.png"] = figures.shares_figure(mix, "Mix shares by surface", "png")
    return found


def cells_of(run: Run, measured: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    """(surface, objective, cell) in config order, "overall" first."""
    config = run.config
    parts = {OVERALL: measured["overall"]} | measured["surfaces"]
    return [
        (surface, o.name, parts[surface][o.name])
        for surface in (OVERALL, *config.surfaces)
        for o in config.objectives
        if o.name in parts.get(surface, {})
    ]


def ne_rows(run: Run, measured: dict[str, Any]) -> dict[str, dict[str, list[float | None]]]:
    """ "surface / objective" -> model -> NE spread, surfaces after "overall"."""
    return {
        f"{surface} / {objective}": {
            model: triple(cell[model]["ne"])
            for model in ("challenger", "champion")
            if model in cell
        }
        for surface, objective, cell in cells_of(run, measured)
    }


def training_lines(run: Run) -> list[dict[str, Any]]:
    """The lines of pretrain/metrics.jsonl; empty when there is none."""
    path = run.output("pretrain") / "metrics.jsonl"
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def training_curve(run: Run, prefix: str = "loss") -> dict[str, tuple[list[float], list[float]]]:
    """Lines over steps of the logged figures under `prefix`, for `figures.curve_figure`.

    "loss" gives one line, "ne" one per objective; empty unless something was logged twice.
    """
    found: dict[str, tuple[list[float], list[float]]] = {}
    for name, step, value in _training(run):
        _, top, *rest = name.split("/")
        if name.startswith("train/") and top == prefix:
            xs, ys = found.setdefault("/".join(rest) or top, ([], []))
            xs.append(float(step))
            ys.append(value)
    return {name: line for name, line in found.items() if len(line[0]) > 1}


def last_figures(run: Run) -> dict[str, float]:
    """The last value of everything in the training log: "ne/click" -> 0.98."""
    return {name.removeprefix("final/"): v for name, _, v in _training(run) if name[:6] == "final/"}


def mix_shares(run: Run) -> dict[str, dict[str, float]]:
    """Candidates, rows kept and kept for certain -> surface -> share, from the mix's figures."""
    manifest = read_manifest(run.output("mix"), missing_ok=True)
    surfaces = (manifest.read_figures() if manifest else {}).get("surfaces")
    if not isinstance(surfaces, dict):
        return {}
    found: dict[str, dict[str, float]] = {}
    for selection in ("candidates", "kept", "certain"):
        counts = {s: float(v[selection]) for s, v in surfaces.items() if selection in v}
        total = sum(counts.values())
        if total:
            found[selection] = {s: c / total for s, c in counts.items()}
    return found


def _training(run: Run) -> Iterator[Step]:
    last: dict[str, float] = {}
    for line in training_lines(run):
        step = int(line.get("step", 0))
        for name, _, value in _leaves("train", {k: v for k, v in line.items() if k != "step"}):
            last[name.removeprefix("train/")] = value
            yield name, step, value
    for name, value in last.items():
        yield f"final/{name}", 0, value


def _evaluation(run: Run) -> Iterator[Step]:
    measured = read_json(run, "evaluate", "metrics.json")
    if not measured:
        return
    for surface, objective, cell in cells_of(run, measured):
        where = f"{surface}/{objective}"
        for name in ("ne", "auc", "calibration"):
            yield f"eval/{name}/{where}", 0, cell["challenger"][name]["value"]
        yield f"eval/gauc/{where}", 0, cell["challenger"]["gauc"]
        if "difference" in cell:
            yield f"eval/ne_gain_pct/{where}", 0, cell["difference"]["ne_gain_pct"]["value"]
        if "truth" in cell:
            closed = cell["truth"]["probability"]["challenger"]["closed"]["value"]
            yield f"eval/closed/{where}", 0, closed


def _coverage(run: Run) -> Iterator[Step]:
    yield from _leaves("coverage", read_json(run, "replay", "coverage.json") or {})


def _leaves(prefix: str, tree: dict[str, Any]) -> Iterator[Step]:
    for name, value in sorted(tree.items()):
        if isinstance(value, dict):
            yield from _leaves(f"{prefix}/{name}", value)
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            yield f"{prefix}/{name}", 0, float(value)


def as_served(run: Run) -> dict[str, Any]:
    """By surface, how much of what its students learned from a store would have covered."""
    manifest = read_manifest(run.output("as_served"), missing_ok=True)
    found: dict[str, Any] = (manifest.read_figures() or {}) if manifest else {}
    shown: dict[str, Any] = found.get("shown_by_surface", {})
    return shown


def _students(run: Run) -> Iterator[Step]:
    yield from _leaves("as_served", as_served(run))
    for row in (read_json(run, "evaluate_students", "table.json") or {}).get("rows", []):
        where = f"{row['surface']}/{row['objective']}/{row['arm']}"
        for name in ("ne", "auc", "calibration", "gain", "tr"):
            if row.get(name):
                yield f"eval/{name}/{where}", 0, row[name][0]


def _scaling(run: Run) -> Iterator[Step]:
    """Laws and comparisons; NE by rung, whose step is the rung."""
    found = read_json(run, "scaling_fit", "fit.json") or {"labels": {}}
    for labels, fit in found["labels"].items():
        for name, family in fit["families"].items():
            for rung in family["rungs"]:
                yield f"scaling/{labels}/ne/{name}", rung["rung"], rung["ne"]["value"]
                yield f"scaling/{labels}/mflop/{name}", rung["rung"], rung["mflop"]
            if "eta" in family:
                yield f"scaling/{labels}/eta/{name}", 0, family["eta"]["value"]
        for name, against in fit["against"].items():
            for figure in ("gain_pct", "slope_ratio"):
                if figure in against:
                    yield f"scaling/{labels}/{figure}/{name}", 0, against[figure]["value"]


def _finite(value: object) -> bool:
    return isinstance(value, (int, float)) and value == value and abs(value) != float("inf")
