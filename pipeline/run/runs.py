"""The chain of stages, the units that they are mapped over, and finding a day's run folder."""

from __future__ import annotations

from pathlib import Path

from pipeline.run.errors import DataError
from pipeline.run.manifest import MANIFEST
from pipeline.run.paths import Run, home, open_run
from pipeline.run.scaling import points, trials

# dag of the daily chain -> its stages in an order that runs; several dags may share one (track)
CHAIN: dict[str, tuple[str, ...]] = {
    "foundation_daily": (
        "land",
        "ingest",
        "contracts",
        "labels",
        "timelines",
        "mix",
        "mixture_contract",
        "pretrain",
        "evaluate",
        "promote",
        "track",
        "report",
    ),
    "solaris_backfill": (
        "represent",
        "representation_contract",
        "predict",
        "precompute",
        "verify",
        "publish",
        "replay",
        "track",
    ),
    "students_daily": (
        "as_served",
        "transfer",
        "evaluate_students",
        "promote_students",
        "track",
        "report",
    ),
}

# what the manual DAG of the scaling law runs, with `--source scaling`
SCALING_LAW = (
    "land",
    "ingest",
    "labels",
    "timelines",
    "mix",
    "scaling_tune",
    "scaling_point",
    "scaling_fit",
    "track",
    "report",
)


def units_of(run: Run, stage: str) -> tuple[str, ...]:
    """Units that a stage runs over; ("",) for a stage that has none."""
    config = run.config
    groups = tuple(str(g) for g in range(config.window.num_groups))
    shards = tuple(str(s) for s in range(config.solaris.num_shards))
    return {
        "ingest": (*config.surfaces, "rest"),
        "timelines": groups,
        "precompute": shards,
        "transfer": config.surfaces,
        "scaling_tune": tuple(p.unit for p in trials(config.scaling)) if config.scaling else (),
        "scaling_point": tuple(p.unit for p in points(config.scaling)) if config.scaling else (),
    }.get(stage, ("",))


def units(folder: str | Path, stage: str) -> list[str]:
    """Units of a stage of the run in `folder`, for Airflow to map over."""
    return list(units_of(open_run(folder), stage))


def unfinished(run: Run) -> list[str]:
    """Outputs of the chain that are not published yet, as "stage" or "stage/unit".

    The report is made twice, before and after the students: one that is older than the
    students' decision counts as unfinished.
    """
    missing = []
    for stage in dict.fromkeys(s for stages in CHAIN.values() for s in stages):
        for unit in units_of(run, stage):
            if not (run.output(stage, unit) / MANIFEST).is_file():
                missing.append(f"{stage}/{unit}" if unit else stage)
    if not missing and _published(run, "report") < _published(run, "promote_students"):
        missing.append("report")
    return missing


def newest_run(day: str, root: Path | None = None) -> Path:
    """The run folder of `day` that was resolved last; `DataError` when there is none."""
    found = (root or home()).glob(f"runs/{day}/*/run.json")
    newest = max(found, key=lambda p: (p.stat().st_mtime_ns, p.parent.name), default=None)
    if newest is None:
        raise DataError(
            f"no run of {day} below {root or home()}; start one: make daily DAY={day}, "
            "or trigger foundation_daily"
        )
    return newest.parent


def _published(run: Run, stage: str) -> int:
    return (run.output(stage) / MANIFEST).stat().st_mtime_ns
