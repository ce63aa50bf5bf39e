"""The data of `benchmarks.peers`: a run per set up to its mix, and the same rows as plain arrays.

Nothing is sampled and clicks are the only objective, so that a row is an impression. What ours
reads through the loader is written out for the peers: the same rows in the same order, the same
hashed ids (plus one: 0 is their padding), the same numbers, and the same events, padded at the end.

Suffixes: N rows, F sparse features, T events, A attributes of an event.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from benchmarks._measure import BenchmarkError
from model.batch import Batch
from model.config import FeatureSet, Objective
from pipeline.evaluation.truth import with_truth
from pipeline.mixing.ingest import ingest
from pipeline.mixing.labels import labels
from pipeline.mixing.land import land
from pipeline.mixing.loader import Loader
from pipeline.mixing.mix import mix
from pipeline.mixing.packing import ACTION_ID_BASE, table_rows
from pipeline.mixing.sources.fetch import SETS, fetch
from pipeline.mixing.timeline import timelines
from pipeline.run.config import RunConfig, with_overrides
from pipeline.run.manifest import need_manifest, write_json
from pipeline.run.paths import Run, open_run
from pipeline.run.presets import preset
from pipeline.run.resolve import resolve
from pipeline.run.runs import units_of
from pipeline.run.window import window_of

NAMES = ("movielens", "tafeng", "planted")
DAYS = {"movielens": "1998-04-22", "tafeng": "2001-02-28", "planted": "2026-11-29"}
EVENT = "shown"
NO_SAMPLING = 1e6  # times the reference surface's cost: every label fits
VALID_SHARE = 0.1  # of the training rows, the last ones: what learning rates are chosen on
# a rating is known at once, and the running bias of `references` sees the second before, too
KNOWN_AFTER_S = {"movielens": 1}
LAST_ROWS = 12_000
STAGES = {"land": land, "ingest": ingest, "labels": labels, "timelines": timelines, "mix": mix}


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A run with its mix, the folder with the same rows for the peers, and where rows are split.

    Rows [0, valid) and [valid, rows) of the training rows choose learning rates; rows from `last`
    on are those that the large Kunlun trains on. `*_us` are the label times of those places.
    """

    run: str
    data: str
    rows: int
    valid: int
    valid_us: int
    last: int
    last_us: int
    cut_us: int


def config_of(name: str, quick: bool) -> RunConfig:
    """A set's config: clicks alone, all rows, impressions as the only events."""
    if name not in NAMES:
        raise BenchmarkError(f"no set {name!r}; choose among {', '.join(NAMES)}")
    config = preset(DAYS[name], "small", name)
    changes: dict[str, Any] = {"mix.budget": NO_SAMPLING, "window.calibration_hours": 0}
    if quick:
        changes |= {
            "tafeng": {"window.bootstrap_days": 8, "window.student_days": 7},
            "planted": {
                "window.bootstrap_days": 4,
                "window.student_days": 2,
                "source.planted.rows_per_day": 12_000,
                "source.planted.users": 2_000,
            },
        }.get(name, {})
    features = with_events(config.features, KNOWN_AFTER_S.get(name))
    config = replace(config, objectives=(Objective(name="click"),), features=features)
    return with_overrides(replace(config, warm_start=False), changes)


def prepare(home: str, name: str, quick: bool) -> dict[str, Any]:
    """The run and the peers' files of a set below `home`; what is there already is kept."""
    if name in SETS:
        fetch(SETS[name], Path(home))
    run = mixed(config_of(name, quick), Path(home))
    folder = Path(home) / "peers" / run.folder.name
    done = folder / "prepared.json"
    if not done.is_file():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        write_json(done, export(run, folder).__dict__)
    found: dict[str, Any] = json.loads(done.read_text())
    return found


def mixed(config: RunConfig, home: Path) -> Run:
    """A run of `config` through all stages up to the mix."""
    run = open_run(resolve(config, home))
    for name, stage in STAGES.items():
        for unit in units_of(run, name):
            stage(run, unit)
    rates = {
        s: f["rate"] for s, f in need_manifest(run.output("mix")).read_figures()["surfaces"].items()
    }
    if min(rates.values()) < 1:
        raise BenchmarkError(f"the mix left rows out, rates {rates}; raise mix.budget")
    return run


def export(run: Run, folder: Path) -> Prepared:
    """Write train.npz, holdout.npz, holdout.parquet and meta.json for the peers."""
    train = Loader(run, batch_size=4_096)
    holdout = Loader(run, "holdout", batch_size=4_096, order="none")
    for name, loader in (("train", train), ("holdout", holdout)):
        np.savez(folder / f"{name}.npz", **arrays(loader))  # type: ignore[arg-type]
    columns = {
        n: holdout.columns[n] for n in ("impression_id", "user_id", "ad_id", "ts_us", "y_click")
    }
    with_truth(run, pl.DataFrame(columns)).write_parquet(folder / "holdout.parquet")
    write_json(folder / "meta.json", meta_of(run.config.features))
    label_us = train.columns["label_us"]
    valid, last = (
        int(np.searchsorted(label_us, label_us[place]))
        for place in (int((1 - VALID_SHARE) * len(label_us)), max(0, len(label_us) - LAST_ROWS))
    )
    return Prepared(
        run=str(run.folder),
        data=str(folder),
        rows=train.num_rows,
        valid=valid,
        valid_us=int(label_us[valid]),
        last=last,
        last_us=int(label_us[last]),
        cut_us=window_of(run.config).cut,
    )


def arrays(loader: Loader) -> dict[str, np.ndarray]:
    """A loader's rows: ids [N, F], history [N, T, A] and its length, dense [N, C], label [N]."""
    found = [_arrays(batch, loader.features) for batch in loader.batches()]
    return {name: np.concatenate([f[name] for f in found]) for name in found[0]}


def meta_of(features: FeatureSet) -> dict[str, Any]:
    """What the peers are told: names, tables and their sizes with the padding, longest history.

    `history` are (attribute, its table, what the row has to compare it with): the feature of that
    name, else, for the action, the id of a click: a number, the same for every row.
    """
    buckets = {t.name: t.buckets + 1 for t in features.tables}
    event = features.events[0]
    names = [f.name for f in features.sparse]

    def against(column: str, table: str) -> str | int:
        if column in names:
            return column
        acted = table_rows(np.array([1 + ACTION_ID_BASE]), buckets[table] - 1)
        return int(acted[0]) + 1

    return {
        "sparse": [[f.name, f.table] for f in features.sparse],
        "tables": {t: n for t, n in buckets.items() if t in {f.table for f in features.sparse}},
        "dense": list(features.dense_columns),
        "history": [[a.column, a.table, against(a.column, a.table)] for a in event.attributes],
        "max_len": event.max_len,
    }


def _arrays(batch: Batch, features: FeatureSet) -> dict[str, np.ndarray]:
    event = features.events[0]
    slices = batch.events[event.name]
    lengths_B = slices.lengths_B.numpy()
    shape = (batch.num_rows, event.max_len, len(event.attributes))
    history_BTA = np.zeros(shape, np.int32)
    filled_BT = np.arange(event.max_len) < lengths_B[:, None]
    history_BTA[filled_BT] = slices.ids_EA.numpy() + 1
    return {
        "ids": batch.ids_BF.numpy().astype(np.int32) + 1,
        "dense": batch.dense_BC.numpy(),
        "history": history_BTA,
        "length": lengths_B.astype(np.int32),
        "label": batch.labels_BK[:, 0].numpy(),
    }


def with_events(features: FeatureSet, known_after_s: int | None) -> FeatureSet:
    """The features with impressions as the only events: not every peer takes two histories."""
    events = tuple(e for e in features.events if e.name == EVENT)
    if known_after_s is not None:
        events = tuple(replace(e, availability_delay_s=known_after_s) for e in events)
    return replace(
        features, events=events, matches=tuple(m for m in features.matches if m.event == EVENT)
    )
