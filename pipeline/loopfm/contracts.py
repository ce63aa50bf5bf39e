"""Stage `representation_contract`: what students may read of the foundation model."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from data_contracts import frames, representations
from pipeline.loopfm.lake import codes_of, day_files, read_bucket, read_index
from pipeline.run.contract import docs_folder, require_columns, settle
from pipeline.run.errors import DataError
from pipeline.run.manifest import Manifest, Outcome, need_manifest, produce
from pipeline.run.paths import Run
from pipeline.run.window import DAY_US, day_of_us

STAGE = "representation_contract"


def representation_contract(run: Run, unit: str = "") -> Manifest:
    """Check every vector that the run's index names; `ContractError` on a critical failure."""
    inputs = {s: need_manifest(run.output(s)).fingerprint for s in ("represent", "mix")}
    settings = [run.config.objectives, run.config.model.representation_dim, run.config.transfer]

    def build(folder: Path) -> Outcome:
        from data_contracts.runner import validate

        index = read_index(run)
        spec = spec_of(run, index)
        frame = _vectors(run, index, spec)
        profile = representations.profile(frame, spec, wanted(run))
        rows = int(profile["rows"][0])
        verdicts = validate(
            "representations",
            representations.suite(spec),
            {"profile": profile, "sample": frames.sample(frame, rows)},
            docs=docs_folder(run, STAGE),
            first_bad=frames.first_bad(frame, profile, representations.row_rules(spec)),
        )
        return settle(run, STAGE, folder, rows, [dataclasses.asdict(v) for v in verdicts])

    return produce(run.output(STAGE), stage=STAGE, inputs=inputs, settings=settings, build=build)


def spec_of(run: Run, index: dict[str, Any]) -> representations.RepresentationsSpec:
    """What the vectors are checked against."""
    return representations.RepresentationsSpec(
        objectives=tuple(o.name for o in run.config.objectives),
        epoch=index["epoch"],
        fm_cut_us=index["fm_cut_us"],
        dim=run.config.model.representation_dim,
    )


def wanted(run: Run) -> pl.DataFrame:
    """Impressions of the log per day: `day`, `rows`."""
    files = sorted((run.output("mix") / "log").glob("bucket=*.parquet"))
    if not files:
        raise DataError(f"{run.output('mix') / 'log'} holds no selection; run mix again")
    number = (pl.col("ts_us") // DAY_US).alias("number")
    counts = pl.scan_parquet(files).group_by(number).agg(rows=pl.len()).sort("number").collect()
    days = [day_of_us(n * DAY_US) for n in counts["number"]]
    return pl.DataFrame({"day": days, "rows": counts["rows"]}, schema_overrides={"day": pl.String})


def _vectors(
    run: Run, index: dict[str, Any], spec: representations.RepresentationsSpec
) -> pl.LazyFrame:
    four_bits = run.config.transfer.lake_format != "same"
    parts = []
    for day in sorted(index["days"]):
        files = day_files(run, index, day)
        found = pl.scan_parquet(files, hive_partitioning=False).collect_schema().names()
        require_columns(f"representations/{day}", found, spec.required)
        frame = _unpacked(files) if four_bits else pl.scan_parquet(files, hive_partitioning=False)
        parts.append(frame.select(*spec.required, "z").with_columns(pl.lit(day).alias("day")))
    if not parts:
        raise DataError(f"the index of {run.config.day} names no days; run represent again")
    return representations.prepared(pl.concat(parts, how="vertical_relaxed"))


def _unpacked(files: list[Path]) -> pl.LazyFrame:
    """Four-bit vectors as lists of numbers."""
    frames = []
    for path in files:
        table = read_bucket(path)
        codes_Nd = codes_of(table).astype(np.float32)
        frame = pl.DataFrame(pl.from_arrow(table.drop_columns("z")))
        z = pl.Series("z", codes_Nd, dtype=pl.Array(pl.Float32, codes_Nd.shape[1]))
        frames.append(frame.with_columns(z))
    return pl.concat(frames).lazy()
