"""Mix: which labels are trained on, with which weight, at the cost of the reference surface.

Three selections are written: train (sampled and weighted), holdout and log (unsampled). They are
pointers (`g` and spans into the timelines); features stay where ingest wrote them.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path

import numpy as np
import polars as pl

from model.config import Objective
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
from pipeline.mixing.frames import read_frames, write_frame
from pipeline.mixing.hashing import uniform
from pipeline.mixing.ledger import Entry, listed
from pipeline.mixing.mix_report import MixReport, copied_feature_bytes
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


def selected_rows(
    objectives: tuple[Objective, ...], base: pl.DataFrame, begin: int, end: int
) -> pl.DataFrame:
    """One row per label known in [begin, end), sorted by (label_us, g).

    Objectives whose labels are known at the same time share a row; y is 0 where m is False.
    """
    frames = []
    by_window = sorted(objectives, key=lambda o: o.window_hours)
    for _, group in groupby(by_window, key=lambda o: o.window_hours):
        names = {o.name for o in group}
        known, mature = (f"{p}_{min(names)}" for p in ("known", "mature"))
        rows = base.filter(pl.col(known).is_between(begin, end, closed="left") & pl.col(mature))
        frames.append(
            rows.with_columns(
                pl.col(known).alias("label_us"),
                *(pl.lit(o.name in names).alias(f"m_{o.name}") for o in objectives),
                *(
                    pl.lit(0, dtype=pl.Int8).alias(f"y_{o.name}")
                    for o in objectives
                    if o.name not in names
                ),
            )
        )
    return pl.concat(frames).sort("label_us", "g")


def logged_rows(objectives: tuple[Objective, ...], base: pl.DataFrame, begin: int) -> pl.DataFrame:
    """Every impression from `begin` on, once: click labels only, label_us = ts_us."""
    rows = base.filter(pl.col("ts_us") >= begin)
    others = [o.name for o in objectives if o.name != "click"]
    return rows.with_columns(
        pl.col("ts_us").alias("label_us"),
        pl.lit(True).alias("m_click"),
        *(pl.lit(False).alias(f"m_{name}") for name in others),
        *(pl.lit(0, dtype=pl.Int8).alias(f"y_{name}") for name in others),
    ).sort("label_us", "g")


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


def any_positive(objectives: tuple[Objective, ...], rows: pl.DataFrame) -> np.ndarray:
    """Rows that are positive for a task whose label they carry."""
    return (
        rows.select(
            pl.any_horizontal(
                (pl.col(f"y_{o.name}") == 1) & pl.col(f"m_{o.name}") for o in objectives
            )
        )
        .to_series()
        .to_numpy()
    )


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
        candidates, balance = self._candidates()
        plan = plan_mix(self.config.mix, self.config.surfaces, candidates)
        report = MixReport(self.config.surfaces, tuple(o.name for o in self.objectives))
        rows_in = 0
        for bucket in self.buckets:
            base = self._base(bucket)
            rows_in += len(self._known(base))
            for name, rows in self._selections(base, plan, balance).items():
                write_frame(bucket_file(self.folder / name, bucket), rows)
                report.add(name, rows)
        kept = report.rows("train")
        figures = report.figures(self.config.surfaces[plan.reference], plan, candidates)
        figures["conversion_balance"] = balance
        figures["feature_bytes_copied"] = copied_feature_bytes(self.folder, self.config.features)
        figures["ledger"] = listed([self._ledger(rows_in, kept)])
        log.info("mix: %s", {n: (f["rate"], f["kept"]) for n, f in figures["surfaces"].items()})
        return Outcome(rows=kept, figures=figures)

    def _base(self, bucket: int) -> pl.DataFrame:
        labels = read_frames([bucket_file(self.run.output("labels"), bucket)])
        spans = [f"{p}_{e.name}" for e in self.config.features.events for p in ("start", "end")]
        hist = read_frames([hist_file(self.run, bucket)], ["g", *spans])
        ids = read_bucket(self.parts, bucket, ["user_id", "ad_id", "request_id"])
        if not len(labels) == len(hist) == len(ids):
            raise DataError(
                f"bucket {bucket} has {len(ids)} impressions, {len(labels)} labels and {len(hist)} "
                "hist rows; run the labels and timelines stages again"
            )
        surface = pl.Series("surface", surface_column(self.parts, bucket))
        extra = [surface, day_column(self.parts, bucket), *hist.drop("g").get_columns()]
        return labels.with_columns(*ids.get_columns(), *extra)

    def _train(self, base: pl.DataFrame) -> tuple[pl.DataFrame, Candidates]:
        rows = self._thinned(self._known(base))
        ids = rows["impression_id"].to_numpy()
        return rows, Candidates(
            surface=rows["surface"].to_numpy(),
            flops=row_flops(self.config, rows),
            positive=any_positive(self.objectives, rows),
            chance=uniform(ids, _SALT + self.config.mix.seed),
        )

    def _known(self, base: pl.DataFrame) -> pl.DataFrame:
        return selected_rows(self.objectives, base, self.window.train_begin, self.window.cut)

    def _thinned(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Without the delayed negatives that are not considered; a delayed row, positive or not,
        has the inverse of that rate as `delayed_factor`, other rows have 1.
        """
        mix = self.config.mix
        delayed = ~rows["m_click"].to_numpy()
        chance = uniform(rows["impression_id"].to_numpy(), _DELAYED_SALT + mix.seed)
        kept = ~delayed | any_positive(self.objectives, rows) | (chance < mix.delayed_rate)
        factor = np.where(delayed, 1.0 / mix.delayed_rate, 1.0)
        return rows.with_columns(pl.Series("delayed_factor", factor)).filter(pl.Series(kept))

    def _candidates(self) -> tuple[Candidates, dict[str, list[float]]]:
        """What may be trained on, all buckets together, and the balance of conversion labels."""
        found, positives = [], Counter[tuple[str, int]]()
        for bucket in self.buckets:
            rows, candidates = self._train(self._base(bucket))
            found.append(candidates)
            for name in self._delayed:
                bought = rows.filter((pl.col(f"y_{name}") == 1) & pl.col(f"m_{name}"))
                positives.update((name, s) for s in bought["surface"].to_list())
        if not sum(len(c.surface) for c in found):
            raise DataError(
                f"no label is known in the training span of {self.config.day}; "
                "raise window.bootstrap_days or choose a day with more data before it"
            )
        places = range(len(self.config.surfaces))
        beta = self.config.mix.conversion_balance
        balance = {
            n: balance_factors(np.array([positives[n, s] for s in places]), beta).tolist()
            for n in self._delayed
        }
        names = ("surface", "flops", "positive", "chance")
        joined = {n: np.concatenate([getattr(c, n) for c in found]) for n in names}
        return Candidates(**joined), balance

    @property
    def _delayed(self) -> list[str]:
        return [o.name for o in self.objectives if o.name != "click"]

    def _selections(
        self, base: pl.DataFrame, plan: Plan, balance: dict[str, list[float]]
    ) -> dict[str, pl.DataFrame]:
        train, found = self._train(base)
        kept = plan.keeps(found.surface, found.positive, found.chance)
        weight, shift = correct(
            self.config.mix.correction,
            rate=plan.rates[found.surface] / train["delayed_factor"].to_numpy(),
            positive=found.positive,
        )
        weights = {n: weight * np.array(f)[found.surface] for n, f in balance.items()}
        window = self.window
        holdout = selected_rows(self.objectives, base, window.cut, window.day_end)
        logged = logged_rows(self.objectives, base, window.students_begin)
        return {
            "train": self._finished(train, weight, shift, weights).filter(pl.Series(kept)),
            "holdout": self._finished(holdout, np.ones(len(holdout)), np.zeros(len(holdout))),
            "log": self._finished(logged, np.ones(len(logged)), np.zeros(len(logged))),
        }

    def _finished(
        self,
        rows: pl.DataFrame,
        weight: np.ndarray,
        shift: np.ndarray,
        weights: Mapping[str, np.ndarray] | None = None,
    ) -> pl.DataFrame:
        """The selection's columns; `weights` replace `weight` for the objectives that they name."""
        names = [o.name for o in self.objectives]
        own = dict.fromkeys(names, weight) | dict(weights or {})
        rows = rows.with_columns(
            pl.Series("shift", shift.astype(np.float32), dtype=pl.Float32),
            *(pl.Series(f"w_{n}", own[n].astype(np.float32), dtype=pl.Float32) for n in names),
        )
        spans = [f"{p}_{e.name}" for e in self.config.features.events for p in ("start", "end")]
        tasks = [f"{p}_{n}" for n in names for p in ("y", "m", "w")]
        return rows.select(*POINTERS, *tasks, *spans)

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
