"""Timelines: every user's events stored once, and per impression where the visible ones end.

A day's timeline is yesterday's, without what left the retention, followed by the day's events; when
yesterday's is absent or was made from other data it is rebuilt from the canonical days. Both
give the same bytes. Impressions carry positions, never copies.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import polars as pl

from model.config import EventType, MatchCount
from pipeline.mixing.canonical import (
    Partition,
    bucket_file,
    partitions,
    window_impressions,
)
from pipeline.mixing.event_rows import event_sequences, integers, read_table
from pipeline.mixing.frames import write_frame
from pipeline.mixing.labels import ingested
from pipeline.mixing.sequences import (
    Sequences,
    extend_sequences,
    read_sequences,
    write_sequences,
)
from pipeline.mixing.visibility import History, Matches, Moments
from pipeline.run.codec import digest
from pipeline.run.config import RunConfig
from pipeline.run.errors import ConfigError, DataError
from pipeline.run.manifest import Manifest, Outcome, need_manifest, produce, read_manifest
from pipeline.run.paths import Run
from pipeline.run.window import DAY_US, day_begin_us, days_between, window_of

log = logging.getLogger(__name__)
SECOND_US = 1_000_000
Parts = dict[str, list[Partition]]


def timelines(run: Run, unit: str) -> Manifest:
    """Publish the timelines of a bucket group in the lake, and hist/ for the window's impressions.

    hist/bucket=B.parquet: g, per event type e start_e and end_e (int64 positions in the bucket's
    timeline), and the match counts (float32, raw).
    """
    buckets = group_buckets(run.config, unit)
    made = publish_timelines(run, buckets)
    inputs = {f"timeline/{b}": m.fingerprint for b, m in made.items()} | ingested(run)

    def build(temporary: Path) -> Outcome:
        shown = window_impressions(run)
        rows = 0
        for bucket in buckets:
            hist = hist_rows(run, shown, bucket)
            write_frame(bucket_file(temporary / "hist", bucket), hist)
            rows += len(hist)
        figures = {"events": {b: m.read_figures()["events"] for b, m in made.items()}}
        return Outcome(rows=rows, figures=figures)

    return produce(
        run.output("timelines", unit),
        stage="timelines",
        unit=unit,
        inputs=inputs,
        settings=[run.config.features.events, run.config.features.matches],
        build=build,
    )


def publish_timelines(run: Run, buckets: Iterable[int]) -> dict[int, Manifest]:
    """Publish the lake's timelines of some buckets on the run's day; manifests by bucket."""
    parts = _retained(run)
    return {b: _publish_timeline(run, parts, b) for b in buckets}


def group_buckets(config: RunConfig, unit: str) -> list[int]:
    """The buckets of a group: those that leave `unit` when divided by the number of groups."""
    groups = config.window.num_groups
    if not unit.isdecimal() or int(unit) >= groups:
        raise ConfigError(
            f"bucket group must be in 0..{groups - 1}, got {unit!r}; raise window.num_groups or "
            "choose another unit"
        )
    return [b for b in range(config.window.num_buckets) if b % groups == int(unit)]


def timeline_folder(run: Run, bucket: int, day: str = "") -> Path:
    """lake/<dataset>/timeline/<events>/day=D/bucket=B, one folder per event type below it.

    <events> names what decides the stored columns: event types, their tables and the retention.
    """
    config = run.config
    kept = [[e.name, e.source] for e in config.features.events]
    stored = digest([kept, config.window.retention_days])
    return run.lake("timeline", stored, f"day={day or config.day}", f"bucket={bucket}")


def hist_rows(run: Run, shown: list[Partition], bucket: int) -> pl.DataFrame:
    """Visible spans and match counts of the window's impressions of a bucket."""
    matches = run.config.features.matches
    keys = sorted({m.key for m in matches})
    rows = read_table(shown, bucket, ["user_id", "ts", *keys])
    user_id, ts_us = integers(rows["user_id"]), integers(rows["ts"])
    reader, moments = TimelineReader(run, bucket), Moments(user_id, ts_us)
    columns = [pl.Series("g", np.arange(len(rows)), dtype=pl.Int64)]
    for event in run.config.features.events:
        start, end = reader.visible_at(event.name, moments)
        columns += [pl.Series(f"start_{event.name}", start), pl.Series(f"end_{event.name}", end)]
    for match in matches:
        counts = reader.match_counts(match, user_id, integers(rows[match.key]), ts_us)
        columns += [pl.Series(n, c) for n, c in zip(match.columns, counts, strict=True)]
    return pl.DataFrame(columns)


class TimelineReader:
    """Reads one bucket's timelines of a run and answers what is visible when."""

    def __init__(self, run: Run, bucket: int) -> None:
        self.folder = timeline_folder(run, bucket)
        self.manifest = need_manifest(self.folder)
        self.events: dict[str, EventType] = {e.name: e for e in run.config.features.events}
        self._sequences: dict[str, Sequences] = {}
        self._histories: dict[str, History] = {}
        self._matches: dict[MatchCount, Matches] = {}

    def sequences(self, event: str) -> Sequences:
        """All events of a type."""
        if event not in self.events:
            raise ConfigError(f"event must be one of {sorted(self.events)}, got {event!r}")
        if event not in self._sequences:
            source = self.events[event].source
            self._sequences[event] = read_sequences(self.folder / event, source)
        return self._sequences[event]

    def visible(
        self, event: str, user_id: np.ndarray, ts_us: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Positions [start, end) in `sequences(event)` that each (user, moment) sees, int64."""
        return self.visible_at(event, Moments(user_id, ts_us))

    def visible_at(self, event: str, moments: Moments) -> tuple[np.ndarray, np.ndarray]:
        """As `visible`, for moments that several event types are asked about."""
        if event not in self._histories:
            delay = self.events[event].availability_delay_s * SECOND_US
            self._histories[event] = History(self.sequences(event), delay)
        return self._histories[event].visible(moments)

    def match_counts(
        self, match: MatchCount, user_id: np.ndarray, key: np.ndarray, ts_us: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Visible events of the user with this key, and those acted on; float32 raw counts."""
        if match not in self._matches:
            sequences = self.sequences(match.event)
            if match.key not in sequences.columns:
                raise ConfigError(
                    f"matches.{match.event}.key must be a column of its events "
                    f"({sorted(sequences.columns)}), got {match.key!r}; choose another key"
                )
            delay = self.events[match.event].availability_delay_s * SECOND_US
            self._matches[match] = Matches(sequences, match.key, delay)
        return self._matches[match].counts(user_id, key, ts_us)


def check_timelines(run: Run) -> None:
    """`DataError` when the lake's timelines are no longer those that the run's hist points into."""
    for group in range(run.config.window.num_groups):
        seen = dict(need_manifest(run.output("timelines", str(group))).inputs)
        for bucket in group_buckets(run.config, str(group)):
            now = need_manifest(timeline_folder(run, bucket)).fingerprint
            if seen[f"timeline/{bucket}"] != now:
                raise DataError(
                    f"{timeline_folder(run, bucket)} changed after hist rows were made; run: "
                    f"python -m pipeline timelines --run {run.folder} --unit {group}, and mix again"
                )


def _retained(run: Run) -> Parts:
    """Canonical partitions of every event source that the retention covers."""
    end = window_of(run.config).day_end
    days = days_between(end - run.config.window.retention_days * DAY_US, end)
    sources = {e.source for e in run.config.features.events}
    return {source: partitions(run, source, days) for source in sorted(sources)}


def _publish_timeline(run: Run, parts: Parts, bucket: int) -> Manifest:
    builder = _Builder(run, parts, bucket)
    return produce(
        timeline_folder(run, bucket),
        stage="timelines",
        unit=f"bucket {bucket}",
        inputs=builder.inputs,
        settings=[run.config.window.retention_days, run.config.surfaces, *_kinds(run.config)],
        build=builder.build,
    )


class _Builder:
    """Makes one bucket's timelines, from yesterday's where they hold the same data."""

    def __init__(self, run: Run, parts: Parts, bucket: int) -> None:
        self.run, self.parts, self.bucket = run, parts, bucket

    @cached_property
    def inputs(self) -> dict[str, str]:
        """Content of every canonical file that takes part, by table, day and surface."""
        return {
            f"{table}/{p.day}/{p.surface}": p.file_sha256(self.bucket)
            for table, found in self.parts.items()
            for p in found
        }

    def build(self, temporary: Path) -> Outcome:
        older = self._yesterday()
        log.info("timeline of bucket %d: %s", self.bucket, "extended" if older else "rebuilt")
        counts = {}
        for event in self.run.config.features.events:
            sequences = self._extended(older, event) if older else self._rebuilt(event)
            write_sequences(temporary / event.name, sequences)
            counts[event.name] = len(sequences.ts_us)
        return Outcome(rows=sum(counts.values()), figures={"events": counts})

    def _yesterday(self) -> Path | None:
        """Yesterday's timeline, if it was made from exactly today's inputs of earlier days."""
        today = self.run.config.day
        before = (dt.date.fromisoformat(today) - dt.timedelta(days=1)).isoformat()
        folder = timeline_folder(self.run, self.bucket, before)
        manifest = read_manifest(folder, missing_ok=True)
        if manifest is None:
            return None
        first = window_of(self.run.config).day_end - self.run.config.window.retention_days * DAY_US
        had = {k: v for k, v in manifest.inputs if day_begin_us(k.split("/")[1]) >= first}
        wanted = {k: v for k, v in self.inputs.items() if k.split("/")[1] != today}
        return folder if had == wanted else None

    def _extended(self, older: Path, event: EventType) -> Sequences:
        todays = [p for p in self.parts[event.source] if p.day == self.run.config.day]
        newer = self._read(event, todays)
        retention = self.run.config.window.retention_days * DAY_US
        begin = window_of(self.run.config).day_end - retention
        return extend_sequences(read_sequences(older / event.name, event.source), newer, begin)

    def _rebuilt(self, event: EventType) -> Sequences:
        return self._read(event, self.parts[event.source])

    def _read(self, event: EventType, parts: Sequence[Partition]) -> Sequences:
        if not parts:
            raise DataError(
                f"event type {event.name!r} reads {event.source}, of which no day was ingested; "
                f"map {event.source} in source.tables and run: "
                f"python -m pipeline ingest --run {self.run.folder} --unit rest"
            )
        surfaces = self.run.config.surfaces
        return event_sequences(event.source, parts, self.bucket, surfaces, event.kinds)


def _kinds(config: RunConfig) -> list[list[tuple[str, ...]]]:
    """The kinds that events are told apart by, where there are any: they shape a timeline."""
    kinds = [e.kinds for e in config.features.events]
    return [kinds] if any(kinds) else []
