"""Stages `contracts` and `mixture_contract`: what enters the chain, and what training reads."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import polars as pl

from data_contracts import frames, impressions, mixture
from pipeline.run.contract import docs_folder, require_columns, settle
from pipeline.run.errors import DataError
from pipeline.run.manifest import Manifest, Outcome, need_manifest, produce, read_manifest
from pipeline.run.paths import Run
from pipeline.run.window import DAY_US, day_begin_us, day_of_us, window_of


def contracts(run: Run, unit: str = "") -> Manifest:
    """Check the day's canonical impressions; `ContractError` when a critical rule is broken."""
    yesterday = day_of_us(day_begin_us(run.config.day) - DAY_US)
    inputs = {
        f"ingest/{u}": need_manifest(run.output("ingest", u)).fingerprint
        for u in (*run.config.surfaces, "rest")
    } | _partitions(run, yesterday)
    settings = [run.config.day, run.config.surfaces, run.config.features]

    def build(folder: Path) -> Outcome:
        from data_contracts.runner import validate

        spec = impressions_spec(run)
        frame, before = _scan(run, run.config.day), _scan(run, yesterday)
        if frame is None:
            raise DataError(
                f"no impressions of {run.config.day} below {run.lake('canonical')}; run ingest"
            )
        require_columns("impressions", frame.collect_schema().names(), spec.required)
        profile = impressions.profile(frame, spec, before)
        rows = int(profile["rows"][0])
        verdicts = validate(
            "impressions",
            impressions.suite(spec),
            {"profile": profile, "sample": frames.sample(frame, rows)},
            docs=docs_folder(run, "contracts"),
            first_bad=frames.first_bad(frame, profile, impressions.row_rules(spec)),
        )
        return settle(run, "contracts", folder, rows, [dataclasses.asdict(v) for v in verdicts])

    return produce(
        run.output("contracts"), stage="contracts", inputs=inputs, settings=settings, build=build
    )


def mixture_contract(run: Run, unit: str = "") -> Manifest:
    """Check the mixture's selections; `ContractError` when a critical rule is broken."""
    config = run.config
    inputs = {"mix": need_manifest(run.output("mix")).fingerprint}
    settings = [config.surfaces, config.objectives, config.features.events, config.parent]

    def build(folder: Path) -> Outcome:
        from data_contracts.runner import validate

        spec = mixture_spec(run)
        frame = _selections(run, spec)
        profile = mixture.profile(frame, spec)
        rows = int(profile["rows"][0])
        verdicts = validate(
            "mixture",
            mixture.suite(spec),
            {"profile": profile, "sample": frames.sample(frame, rows)},
            docs=docs_folder(run, "mixture_contract"),
            first_bad=frames.first_bad(frame, profile, mixture.row_rules(spec)),
        )
        found = [dataclasses.asdict(v) for v in verdicts]
        return settle(run, "mixture_contract", folder, rows, found)

    return produce(
        run.output("mixture_contract"),
        stage="mixture_contract",
        inputs=inputs,
        settings=settings,
        build=build,
    )


def impressions_spec(run: Run) -> impressions.ImpressionsSpec:
    """What the run's day of impressions is checked against."""
    begin = day_begin_us(run.config.day)
    return impressions.ImpressionsSpec(
        surfaces=run.config.surfaces,
        sparse=tuple(f.name for f in run.config.features.sparse if f.name != "surface"),
        dense=tuple(f.name for f in run.config.features.dense),
        day_begin=begin,
        day_end=begin + DAY_US,
    )


def mixture_spec(run: Run) -> mixture.MixtureSpec:
    """What the run's mixture is checked against."""
    window = window_of(run.config)
    return mixture.MixtureSpec(
        surfaces=run.config.surfaces,
        objectives=tuple(o.name for o in run.config.objectives),
        events=tuple(e.name for e in run.config.features.events),
        train_begin=window.train_begin,
        cut=window.cut,
        day_end=window.day_end,
    )


def _folder(run: Run, day: str, surface: str) -> Path:
    return run.lake("canonical", "impressions", f"day={day}", f"surface={surface}")


def _scan(run: Run, day: str) -> pl.LazyFrame | None:
    files = [
        path
        for surface in run.config.surfaces
        for path in sorted(_folder(run, day, surface).glob("bucket=*.parquet"))
    ]
    return pl.scan_parquet(files, hive_partitioning=False) if files else None


def _partitions(run: Run, day: str) -> dict[str, str]:
    found = {s: read_manifest(_folder(run, day, s), missing_ok=True) for s in run.config.surfaces}
    return {f"yesterday/{s}": m.fingerprint for s, m in found.items() if m}


def _selections(run: Run, spec: mixture.MixtureSpec) -> pl.LazyFrame:
    parts = {}
    for name in mixture.SELECTIONS:
        files = sorted((run.output("mix") / name).glob("bucket=*.parquet"))
        if not files:
            raise DataError(f"{run.output('mix') / name} holds no selection; run mix again")
        frame = pl.scan_parquet(files, hive_partitioning=False)
        require_columns(f"mix/{name}", frame.collect_schema().names(), spec.required)
        parts[name] = frame.select(spec.required)
    return mixture.labelled(parts)
