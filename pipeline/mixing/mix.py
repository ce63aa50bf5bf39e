"""Mix: which labels are trained on, with which weight, at the cost of the reference surface.

Three selections are written: train (sampled and weighted), holdout and log (unsampled). They are
pointers (`g` and spans into the timelines); features stay where ingest wrote them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pipeline.mixing.budget import Plan, plan_mix
from pipeline.mixing.canonical import (
    Partition,
    bucket_file,
    bucket_files,
    day_column,
    surface_column,
    window_impressions,
)
from pipeline.mixing.drafts import Draft, draft, joined, positives, rare_among
from pipeline.mixing.frames import (
    ROW_GROUP,
    arrow_column,
    iter_columns,
    read_columns,
    write_pointers,
)
from pipeline.mixing.ledger import Entry, listed
from pipeline.mixing.mix_report import MixReport, copied_feature_bytes
from pipeline.mixing.selections import (
    Columns,
    Selection,
    click_group,
    known_labels,
    labels_at,
    logged_labels,
    rows_of,
)
from pipeline.mixing.weights import balance_factors, check_correction, correct
from pipeline.run.errors import DataError
from pipeline.run.manifest import Manifest, Outcome, need_manifest, produce
from pipeline.run.paths import Run
from pipeline.run.window import window_of

log = logging.getLogger(__name__)
SELECTIONS = ("train", "holdout", "log")
POINTERS = (
    "g",
    "impression_id",
    "user_id",
    "ad_id",
    "request_id",
    "day",
    "surface",
    "ts_us",
    "label_us",
    "shift",
)
Balance = dict[str, NDArray[np.float64]]  # by objective


def mix(run: Run, unit: str = "") -> Manifest:
    """Publish train/, holdout/ and log/; figures hold rates, FLOPs, ledger and counts.

    `DataError` when the run's span holds no label to train on.
    """
    config, window = run.config, window_of(run.config)
    check_correction(config.mix.correction, config.objectives)
    groups = range(config.window.num_groups)
    outputs = {f"timelines/{g}": run.output("timelines", str(g)) for g in groups}
    outputs["labels"] = run.output("labels")
    inputs = {name: need_manifest(folder).fingerprint for name, folder in outputs.items()}

    def build(temporary: Path) -> Outcome:
        return _Mixer(run, temporary).mix()

    return produce(
        run.output("mix"),
        stage="mix",
        unit=unit,
        inputs=inputs,
        settings=[config.mix, config.model, config.features, config.objectives, window],
        build=build,
    )


def hist_file(run: Run, bucket: int) -> Path:
    """The hist rows of a bucket, wherever its group published them."""
    group = bucket % run.config.window.num_groups
    return bucket_file(run.output("timelines", str(group)) / "hist", bucket)


class _Mixer:
    """One pass over the buckets for drafts, one to write; a bucket at a time is in memory."""

    def __init__(self, run: Run, folder: Path) -> None:
        self.run, self.config, self.folder = run, run.config, folder
        self.window = window_of(run.config)
        self.objectives = run.config.objectives
        self.parts: list[Partition] = window_impressions(run)
        self.buckets = range(run.config.window.num_buckets)
        self.days = pl.Series(self.window.days).to_arrow(compat_level=pl.CompatLevel.oldest())
        self.spans = [f"{p}_{e.name}" for e in run.config.features.events for p in ("start", "end")]

    def mix(self) -> Outcome:
        """Plan over all candidates, then write every bucket's selections."""
        _keep_freed_memory()
        drafts = [list(self._drafts(bucket)) for bucket in self.buckets]
        rare = rare_among(self.config, list(chain.from_iterable(drafts)))
        drafts = [[d.settled(self.objectives, rare) for d in parts] for parts in drafts]
        every = list(chain.from_iterable(drafts))
        if not any(map(len, every)):
            raise DataError(
                f"no label is known in the training span of {self.config.day}; "
                "raise window.bootstrap_days or choose a day with more data before it"
            )
        balance = self._balance(every)
        plan = plan_mix(self.config.mix, self.config.surfaces, *(d.costs for d in every))
        report = MixReport(self.config.surfaces, tuple(o.name for o in self.objectives))
        for bucket in self.buckets:
            self._write(bucket, drafts[bucket], plan, balance, report)
        kept = report.rows("train")
        figures = report.figures(plan)
        figures["conversion_balance"] = {n: f.tolist() for n, f in balance.items()}
        figures["feature_bytes_copied"] = copied_feature_bytes(self.folder, self.config.features)
        figures["ledger"] = listed([self._ledger(int(sum(d.known.sum() for d in every)), kept)])
        log.info("mix: %s", {n: (f["rate"], f["kept"]) for n, f in figures["surfaces"].items()})
        return Outcome(rows=kept, figures=figures)

    def _balance(self, drafts: list[Draft]) -> Balance:
        beta = self.config.mix.conversion_balance
        counts = positives(self.config, drafts)
        return {n: balance_factors(c, beta) for n, c in counts.items() if n != "click"}

    def _drafts(self, bucket: int) -> Iterator[Draft]:
        """A bucket's candidates, a row group of its impressions at a time."""
        surface = surface_column(self.parts, bucket)
        labels, hist = self._files(bucket, len(surface))
        begin = 0
        for found, seen in zip(iter_columns(*labels), iter_columns(*hist), strict=True):
            end = begin + len(found["impression_id"])
            rows = found | seen | {"surface": surface[begin:end]}
            yield draft(self.config, self.window, rows, begin)
            begin = end

    def _whole(self, bucket: int) -> Columns:
        """All that selections need of a bucket's impressions."""
        surface = surface_column(self.parts, bucket)
        found = {"surface": surface, "day": day_column(self.parts, bucket, self.window.days)}
        for path, names in self._files(bucket, len(surface)):
            found |= read_columns([path], names, len(surface))
        found["ts_us"] = found["known_click"]  # a click is known at once
        paths = bucket_files(self.parts, bucket)
        return found | read_columns(paths, ["user_id", "ad_id", "request_id"], len(surface))

    def _files(self, bucket: int, num_rows: int) -> tuple[tuple[Path, list[str]], ...]:
        """A bucket's label and hist files with what the mix reads of them; rows are checked."""
        tasks = [f"{p}_{o.name}" for o in self.objectives for p in ("y", "known")]
        labels = bucket_file(self.run.output("labels"), bucket)
        hist = hist_file(self.run, bucket)
        rows = [pq.read_metadata(path).num_rows for path in (labels, hist)]
        if rows != [num_rows, num_rows]:
            raise DataError(
                f"bucket {bucket} has {num_rows} impressions, {rows[0]} labels and {rows[1]} hist "
                "rows; run the labels and timelines stages again"
            )
        return (labels, ["impression_id", *tasks]), (hist, self.spans or ["g"])

    def _write(
        self,
        bucket: int,
        drafts: list[Draft],
        plan: Plan,
        balance: Balance,
        report: MixReport,
    ) -> None:
        base = self._whole(bucket)
        selections = {"train": self._train(base, drafts, plan, balance)} | self._unsampled(base)
        made = ("g", "label_us", "shift")
        columns = [n for n in (*POINTERS, *self.spans) if n not in made]
        for name, chosen in selections.items():
            chunks = rows_of(self.objectives, base, chosen, columns=columns, step=ROW_GROUP)
            tables = (self._table(rows) for rows in report.counting(name, chunks))
            write_pointers(bucket_file(self.folder / name, bucket), tables)

    def _train(self, base: Columns, drafts: list[Draft], plan: Plan, balance: Balance) -> Selection:
        masks = (plan.keeps(d.costs.surface, d.costs.certain, d.costs.chance) for d in drafts)
        kept = joined([d.take(mask) for d, mask in zip(drafts, masks, strict=True)])
        labels = labels_at(self.objectives, base, kept.place, kept.group)
        surface = kept.costs.surface
        rates = kept.rates(plan, self.config.mix.delayed_rate, click_group(self.objectives))
        weight, shift = correct(self.config.mix.correction, **rates)
        weights: Balance = {o.name: weight for o in self.objectives}
        weights |= {n: weight * factors[surface] for n, factors in balance.items()}
        return Selection(labels=labels, order=labels.order(), shift=shift, weights=weights)

    def _unsampled(self, base: Columns) -> dict[str, Selection]:
        window = self.window
        holdout = known_labels(self.objectives, base, window.cut, window.day_end)
        logged = logged_labels(self.objectives, base, window.students_begin)
        return {
            "holdout": Selection(labels=holdout, order=holdout.order()),
            "log": Selection(labels=logged, order=logged.order()),
        }

    def _table(self, rows: Columns) -> pa.Table:
        tasks = [f"{p}_{o.name}" for o in self.objectives for p in ("y", "m", "w")]
        columns = {n: arrow_column(rows[n]) for n in (*POINTERS, *tasks, *self.spans)}
        columns["day"] = pa.DictionaryArray.from_arrays(columns["day"], self.days)
        return pa.table(columns)

    def _ledger(self, rows_in: int, rows_out: int) -> Entry:
        return Entry(
            table="train",
            day=self.config.day,
            rows_in=rows_in,
            rows_out=rows_out,
            quarantined=0,
            duplicates=0,
            sampled_out=rows_in - rows_out,
        ).checked()


def _keep_freed_memory() -> None:
    """Let freed arrays serve the next ones.

    glibc returns what is freed to the system at once, and the next array is cleared page by page,
    unless a larger piece than that was freed before: one of nearly the most that it considers.
    """
    np.empty(31 << 20, dtype=np.int8)
