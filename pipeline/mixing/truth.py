"""The planted truth, where there is one, split by user; no stage but evaluation reads it."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from pipeline.mixing.canonical import bucket_file
from pipeline.mixing.frames import read_frames, write_frame
from pipeline.mixing.hashing import bucket_of
from pipeline.run.manifest import Manifest, Outcome, fingerprint_of, produce, sha256_file
from pipeline.run.paths import Run
from pipeline.run.window import window_of


def ingest_truth(run: Run) -> dict[str, str]:
    """Split the truth of the window's days into buckets; fingerprints by day."""
    done = {}
    for day in window_of(run.config).days:
        paths = sorted(run.landing("truth", f"day={day}").glob("*.parquet"))
        if paths:
            done[f"truth/{day}"] = _ingest_truth_day(run, day, paths).fingerprint
    return done


def _ingest_truth_day(run: Run, day: str, paths: list[Path]) -> Manifest:
    num_buckets = run.config.window.num_buckets

    def build(temporary: Path) -> Outcome:
        frame = read_frames(paths)
        buckets = bucket_of(frame["user_id"].to_numpy(), num_buckets)
        rows = []
        for bucket in range(num_buckets):
            part = frame.filter(pl.Series(buckets == bucket))
            write_frame(bucket_file(temporary, bucket), part)
            rows.append(len(part))
        return Outcome(rows=sum(rows), figures={"bucket_rows": rows})

    return produce(
        run.lake("truth", f"day={day}"),
        stage="ingest",
        unit=f"truth {day}",
        inputs={"source": fingerprint_of([(p.name, sha256_file(p)) for p in paths])},
        settings={"buckets": num_buckets},
        build=build,
    )
