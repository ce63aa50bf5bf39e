"""Mix: which labels are trained on, with which weight, at the cost of the reference surface.

Three selections are written: train (sampled and weighted), holdout and log (unsampled). They are
pointers (`g` and spans into the timelines); features stay where ingest wrote them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import polars as pl

from model.flops import flops_per_row
from pipeline.mixing.budget import Candidates, Plan, plan_mix
from pipeline.mixing.canonical import (
    Partition,
    bucket_file,
    day_column,
    read_bucket,
    surface_column,
    window_impressions,
)
from pipeline.mixing.frames import read_frames, write_selection
from pipeline.mixing.hashing import uniform
from pipeline.mixing.ledger import Entry, listed
from pipeline.mixing.mix_report import MixReport, copied_feature_bytes
from pipeline.mixing.selections import (
    Labels,
    Mask,
    known_labels,
    logged_labels,
    positive_labels,
    rows_of,
    windows,
)
from pipeline.mixing.weights import balance_factors, check_correction, correct
from pipeline.run.config import RunConfig
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
_SALT = 1_000  # keeps mix.seed apart from the seeds of buckets and table rows
_DELAYED_SALT = 2_000


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


def row_flops(config: RunConfig, rows: pl.DataFrame) -> np.ndarray:
    """Forward FLOPs of each row, from the events that it would read."""
    lengths = {
        e.name: (rows[f"end_{e.name}"] - rows[f"start_{e.name}"]).clip(0, e.max_len).to_numpy()
        for e in config.features.events
    }
    each = flops_per_row(
        config.model, config.features, len(config.objectives), lengths, len(config.surfaces)
    )
    return np.broadcast_to(np.asarray(each, dtype=np.float64), (len(rows),))


class _Mixer:
    """One pass over the buckets for costs, one to write; a bucket at a time is in memory."""

    def __init__(self, run: Run, folder: Path) -> None:
        self.run, self.config, self.folder = run, run.config, folder
        self.window = window_of(run.config)
        self.objectives = run.config.objectives
        self.parts: list[Partition] = window_impressions(run)
        self.buckets = range(run.config.window.num_buckets)

    def mix(self) -> Outcome:
        """Plan over all candidates, then write every bucket's selections."""
        candidates, balance, rows_in = self._candidates()
        plan = plan_mix(self.config.mix, self.config.surfaces, candidates)
        report = MixReport(self.config.surfaces, tuple(o.name for o in self.objectives))
        for bucket in self.buckets:
            base = self._whole(bucket)
            for name, rows in self._selections(base, plan, balance):
                write_selection(bucket_file(self.folder / name, bucket), rows)
                report.add(name, rows)
        kept = report.rows("train")
        figures = report.figures(self.config.surfaces[plan.reference], plan, candidates)
        figures["conversion_balance"] = balance
        figures["feature_bytes_copied"] = copied_feature_bytes(self.folder, self.config.features)
        figures["ledger"] = listed([self._ledger(rows_in, kept)])
        log.info("mix: %s", {n: (f["rate"], f["kept"]) for n, f in figures["surfaces"].items()})
        return Outcome(rows=kept, figures=figures)

    def _base(self, bucket: int) -> pl.DataFrame:
        """What costs and sampling need of a bucket's impressions."""
        labels = read_frames([bucket_file(self.run.output("labels"), bucket)])
        hist = read_frames([hist_file(self.run, bucket)], self._spans)
        surface = pl.Series("surface", surface_column(self.parts, bucket))
        if not len(labels) == len(hist) == len(surface):
            raise DataError(
                f"bucket {bucket} has {len(surface)} impressions, {len(labels)} labels and "
                f"{len(hist)} hist rows; run the labels and timelines stages again"
            )
        return labels.with_columns(surface, *hist.get_columns())

    def _whole(self, bucket: int) -> pl.DataFrame:
        """The base with the keys that selections carry."""
        ids = read_bucket(self.parts, bucket, ["user_id", "ad_id", "request_id"])
        days = day_column(self.parts, bucket)
        return self._base(bucket).with_columns(*ids.get_columns(), days)

    @property
    def _spans(self) -> list[str]:
        events = self.config.features.events
        return [f"{p}_{e.name}" for e in events for p in ("start", "end")]

    def _considered(self, base: pl.DataFrame) -> tuple[Labels, Mask, Mask, int]:
        """Labels of the training span without the delayed negatives that are not considered.

        Also which of them are positive and which delayed, and how many labels there were.
        """
        mix = self.config.mix
        known = known_labels(self.objectives, base, self.window.train_begin, self.window.cut)
        positive = positive_labels(self.objectives, base, known)
        clicks = next(i for i, n in enumerate(windows(self.objectives)) if "click" in n)
        delayed = known.group != clicks
        doubtful = np.flatnonzero(delayed & ~positive)
        ids = base["impression_id"].to_numpy()[known.place[doubtful]]
        kept = np.ones(len(known), dtype=bool)
        kept[doubtful] = uniform(ids, _DELAYED_SALT + mix.seed) < mix.delayed_rate
        return known.take(kept), positive[kept], delayed[kept], len(known)

    def _candidates(self) -> tuple[Candidates, dict[str, list[float]], int]:
        """What may be trained on, all buckets together, the conversions' balance, and how many
        labels the span has.
        """
        surfaces = len(self.config.surfaces)
        found, rows_in = [], 0
        bought = {name: np.zeros(surfaces, np.int64) for name in self._delayed}
        for bucket in self.buckets:
            base = self._base(bucket)
            labels, positive, delayed, known = self._considered(base)
            rows_in += known
            found.append(self._costs(base, labels, positive))
            here = labels.take(positive & delayed)
            for name, counts in bought.items():
                own = here.place[base[f"y_{name}"].to_numpy()[here.place] == 1]
                counts += np.bincount(base["surface"].to_numpy()[own], minlength=surfaces)
        if not sum(len(c.surface) for c in found):
            raise DataError(
                f"no label is known in the training span of {self.config.day}; "
                "raise window.bootstrap_days or choose a day with more data before it"
            )
        beta = self.config.mix.conversion_balance
        balance = {n: balance_factors(counts, beta).tolist() for n, counts in bought.items()}
        names = ("surface", "flops", "positive", "chance")
        joined = {n: np.concatenate([getattr(c, n) for c in found]) for n in names}
        return Candidates(**joined), balance, rows_in

    def _costs(self, base: pl.DataFrame, labels: Labels, positive: Mask) -> Candidates:
        rows = base.select("impression_id", "surface", *self._spans)[labels.place]
        return Candidates(
            surface=rows["surface"].to_numpy(),
            flops=row_flops(self.config, rows),
            positive=positive,
            chance=uniform(rows["impression_id"].to_numpy(), _SALT + self.config.mix.seed),
        )

    @property
    def _delayed(self) -> list[str]:
        return [o.name for o in self.objectives if o.name != "click"]

    def _selections(
        self, base: pl.DataFrame, plan: Plan, balance: dict[str, list[float]]
    ) -> Iterator[tuple[str, pl.DataFrame]]:
        window, objectives = self.window, self.objectives
        yield "train", self._train(base, plan, balance)
        holdout = known_labels(objectives, base, window.cut, window.day_end)
        yield "holdout", self._frame(base, holdout.take(holdout.order()))
        logged = logged_labels(objectives, base, window.students_begin)
        yield "log", self._frame(base, logged.take(logged.order()))

    def _train(
        self, base: pl.DataFrame, plan: Plan, balance: dict[str, list[float]]
    ) -> pl.DataFrame:
        labels, positive, delayed, _ = self._considered(base)
        surface = base["surface"].to_numpy()[labels.place]
        ids = base["impression_id"].to_numpy()[labels.place]
        kept = plan.keeps(surface, positive, uniform(ids, _SALT + self.config.mix.seed))
        rows = np.flatnonzero(kept)[labels.take(kept).order()]
        labels, positive, surface = labels.take(rows), positive[rows], surface[rows]
        considered = np.where(delayed[rows], self.config.mix.delayed_rate, 1.0)
        weight, shift = correct(
            self.config.mix.correction, rate=plan.rates[surface] * considered, positive=positive
        )
        weights: dict[str, np.ndarray] = {o.name: weight for o in self.objectives}
        weights |= {n: weight * np.array(f)[surface] for n, f in balance.items()}
        return self._frame(base, labels, shift, weights)

    def _frame(
        self,
        base: pl.DataFrame,
        labels: Labels,
        shift: np.ndarray | None = None,
        weights: Mapping[str, np.ndarray] | None = None,
    ) -> pl.DataFrame:
        own = [n for n in POINTERS if n not in ("label_us", "shift")]
        columns = rows_of(
            self.objectives,
            base,
            labels,
            columns=[*own, *self._spans],
            shift=shift,
            weights=weights,
        )
        tasks = [f"{p}_{o.name}" for o in self.objectives for p in ("y", "m", "w")]
        return pl.DataFrame({n: columns[n] for n in (*POINTERS, *tasks, *self._spans)})

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
