"""Mix: which labels are trained on, with which weight, at the cost of the reference surface.

Three selections are written: train (sampled and weighted), holdout and log (unsampled). They are
pointers (`g` and spans into the timelines); features stay where ingest wrote them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.mixing.budget import Plan, plan_mix
from pipeline.mixing.canonical import (
    Partition,
    bucket_file,
    day_column,
    read_bucket,
    surface_column,
    window_impressions,
)
from pipeline.mixing.drafts import Draft, draft, joined
from pipeline.mixing.frames import ROW_GROUP, read_frames, write_pointers
from pipeline.mixing.ledger import Entry, listed
from pipeline.mixing.mix_report import MixReport, copied_feature_bytes
from pipeline.mixing.selections import (
    Columns,
    Selection,
    click_group,
    known_labels,
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
Balance = dict[str, NDArray[np.float64]]  # factor by surface, of each conversion objective


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
        drafts = [draft(self.config, self.window, self._base(bucket)) for bucket in self.buckets]
        candidates = joined(drafts)
        if not len(candidates.surface):
            raise DataError(
                f"no label is known in the training span of {self.config.day}; "
                "raise window.bootstrap_days or choose a day with more data before it"
            )
        balance = self._balance(drafts)
        plan = plan_mix(self.config.mix, self.config.surfaces, candidates)
        report = MixReport(self.config.surfaces, tuple(o.name for o in self.objectives))
        for bucket in self.buckets:
            self._write(bucket, drafts[bucket], plan, balance, report)
        kept = report.rows("train")
        figures = report.figures(self.config.surfaces[plan.reference], plan, candidates)
        figures["conversion_balance"] = {n: f.tolist() for n, f in balance.items()}
        figures["feature_bytes_copied"] = copied_feature_bytes(self.folder, self.config.features)
        figures["ledger"] = listed([self._ledger(sum(d.num_known for d in drafts), kept)])
        log.info("mix: %s", {n: (f["rate"], f["kept"]) for n, f in figures["surfaces"].items()})
        return Outcome(rows=kept, figures=figures)

    def _balance(self, drafts: list[Draft]) -> Balance:
        beta = self.config.mix.conversion_balance
        bought = {n: sum(d.bought[n] for d in drafts) for n in drafts[0].bought}
        return {n: balance_factors(np.asarray(c), beta) for n, c in bought.items()}

    def _base(self, bucket: int) -> dict[str, NDArray[Any]]:
        """What drafts need of a bucket's impressions."""
        names = [f"{p}_{o.name}" for o in self.objectives for p in ("y", "known", "mature")]
        labels = bucket_file(self.run.output("labels"), bucket)
        found = _columns(read_frames([labels], ["impression_id", "ts_us", *names]))
        found |= _columns(read_frames([hist_file(self.run, bucket)], self.spans))
        found["surface"] = surface_column(self.parts, bucket)
        rows = {n: len(found[n]) for n in ("surface", "ts_us", *self.spans[:1])}
        if len(set(rows.values())) > 1:
            raise DataError(
                f"bucket {bucket} has {rows} rows of impressions, labels and hist; "
                "run the labels and timelines stages again"
            )
        return found

    def _whole(self, bucket: int) -> dict[str, NDArray[Any]]:
        """The base with the keys that selections carry."""
        found = _columns(read_bucket(self.parts, bucket, ["user_id", "ad_id", "request_id"]))
        found["day"] = day_column(self.parts, bucket, self.window.days)
        return found | self._base(bucket)

    def _write(
        self, bucket: int, drafted: Draft, plan: Plan, balance: Balance, report: MixReport
    ) -> None:
        base = self._whole(bucket)
        for name, selection in self._selections(base, drafted, plan, balance):
            rows = self._rows(base, selection)
            tables = (self._table(chunk) for chunk in report.counting(name, rows))
            write_pointers(bucket_file(self.folder / name, bucket), tables)

    def _selections(
        self, base: Columns, drafted: Draft, plan: Plan, balance: Balance
    ) -> Iterator[tuple[str, Selection]]:
        window, objectives = self.window, self.objectives
        yield "train", self._train(base, drafted, plan, balance)
        holdout = known_labels(objectives, base, window.cut, window.day_end)
        yield "holdout", Selection(labels=holdout.take(holdout.order()))
        logged = logged_labels(objectives, base, window.students_begin)
        yield "log", Selection(labels=logged.take(logged.order()))

    def _train(self, base: Columns, drafted: Draft, plan: Plan, balance: Balance) -> Selection:
        costs = drafted.costs
        kept = np.flatnonzero(plan.keeps(costs.surface, costs.positive, costs.chance))
        unsorted = drafted.labels(self.objectives, base, kept)
        order = unsorted.order()
        labels, kept = unsorted.take(order), kept[order]
        surface, positive = costs.surface[kept], costs.positive[kept]
        delayed = labels.group != click_group(self.objectives)
        considered = np.where(delayed, self.config.mix.delayed_rate, 1.0)
        weight, shift = correct(
            self.config.mix.correction, rate=plan.rates[surface] * considered, positive=positive
        )
        weights = {o.name: weight for o in self.objectives}
        weights |= {n: weight * factors[surface] for n, factors in balance.items()}
        return Selection(labels=labels, shift=shift, weights=weights)

    def _rows(self, base: Columns, selection: Selection) -> Iterator[dict[str, NDArray[Any]]]:
        made = ("g", "label_us", "shift")
        columns = [n for n in (*POINTERS, *self.spans) if n not in made]
        return rows_of(self.objectives, base, selection, columns=columns, step=ROW_GROUP)

    def _table(self, rows: Columns) -> pa.Table:
        tasks = [f"{p}_{o.name}" for o in self.objectives for p in ("y", "m", "w")]
        columns = {n: _arrow(rows[n]) for n in (*POINTERS, *tasks, *self.spans)}
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


def _columns(frame: pl.DataFrame) -> dict[str, NDArray[Any]]:
    return {
        s.name: np.concatenate([chunk.to_numpy() for chunk in s.get_chunks()])
        for s in frame.get_columns()
    }


def _arrow(values: NDArray[Any]) -> pa.Array:
    """The same memory as Arrow's; its own way from numpy imports pandas, which takes a second."""
    data = np.packbits(values, bitorder="little") if values.dtype == bool else values
    kind = pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(data)])
