"""The rows of a surface's students: features, labels by time, soft labels and histories.

Suffixes: R rows of the surface in time order, N stored events, K objectives, d code width.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
import polars as pl
import torch

from model.batch import Batch
from model.config import EventType, FeatureSet
from model.student_sequence import History
from pipeline.loopfm.compress import unpack
from pipeline.loopfm.lake import Representations, read_representations
from pipeline.loopfm.sequence import index_by_owner, last_spans
from pipeline.loopfm.training import StudentRows
from pipeline.mixing.canonical import bucket_file
from pipeline.mixing.hashing import bucket_of
from pipeline.mixing.loader import Loader
from pipeline.mixing.packing import pack_events
from pipeline.mixing.timeline import TimelineReader
from pipeline.run.config import RunConfig
from pipeline.run.errors import ConfigError, DataError
from pipeline.run.paths import Run
from pipeline.run.window import Window, window_of

GATHER_BATCH = 16_384
DEFAULT_DELAY_S = 600


@dataclass(frozen=True, kw_only=True)
class SurfaceRows:
    """Everything about a surface's logged impressions, in time order.

    `ids`: impression_id, user_id, ts_us. `y_RK`: labels. `train_RK`, `test_RK`: where a label
    may be trained on (known before the cut) and where it is scored (known from the cut on).
    `places`: bucket and g, where a row lies in the lake.
    """

    ids: pl.DataFrame
    places: pl.DataFrame
    rows: StudentRows
    y_RK: np.ndarray
    train_RK: np.ndarray
    test_RK: np.ndarray


def surface_rows(run: Run, surface: str, *, features: FeatureSet, raw: bool) -> SurfaceRows:
    """Gather a surface's rows; `DataError` when nothing can be trained on or scored.

    `features`: what the batch holds, `raw`: whether the rows have the events themselves too.
    """
    log = _gather(run, surface, features)
    stored = read_representations(run)
    own_R = _places(log.ids, stored)
    known = _labels(run, log.ids)
    names: list[str] = [o.name for o in run.config.objectives]
    y_RK = np.stack([known[f"y_{n}"].to_numpy() for n in names], axis=1)
    train_RK, test_RK = _masks(known, names, window_of(run.config))
    if not train_RK.any() or not test_RK.any():
        raise DataError(
            f"surface {surface} has {int(train_RK.any(axis=1).sum())} rows to train on and "
            f"{int(test_RK.any(axis=1).sum())} to score in {run.config.day}'s span; "
            "raise window.student_days or leave the surface out"
        )
    batch = replace(
        log.batch,
        labels_BK=torch.from_numpy(np.where(train_RK, y_RK, 0).astype(np.float32)),
        mask_BK=torch.from_numpy(train_RK.astype(np.float32)),
        weight_BK=torch.ones(y_RK.shape, dtype=torch.float32),
    )
    loop, own = _histories(run.config, log.ids, stored, own_R)
    soft_RK = torch.sigmoid(torch.from_numpy(stored.logits_NK[own_R]))
    rows = StudentRows(
        batch=batch,
        soft_RK=soft_RK,
        loop=loop,
        own=own,
        raw=_raw_history(run, features, log.ids) if raw else None,
    )
    return SurfaceRows(
        ids=log.ids.select("impression_id", "user_id", "ts_us"),
        places=log.ids.select("bucket", "g"),
        rows=rows,
        y_RK=y_RK,
        train_RK=train_RK,
        test_RK=test_RK,
    )


def history_delay_us(config: RunConfig) -> int:
    """How long after an impression its representation is available, as its event is."""
    shown = [e.availability_delay_s for e in config.features.events if e.source == "impressions"]
    return 1_000_000 * max(shown, default=DEFAULT_DELAY_S)


def raw_event(features: FeatureSet) -> EventType:
    """The event type behind the representations: impressions; `ConfigError` without one."""
    shown = [e for e in features.events if e.source == "impressions"]
    if not shown:
        raise ConfigError(
            "arms with raw history need an event type of impressions, got "
            f"{[e.name for e in features.events]}; declare one or leave these arms out"
        )
    return shown[0]


def with_matches(features: FeatureSet, every: FeatureSet) -> FeatureSet:
    """A student's features and the match counts of impressions; they come last."""
    event = raw_event(every).name
    return replace(features, matches=tuple(m for m in every.matches if m.event == event))


@dataclass(frozen=True, kw_only=True)
class _Log:
    ids: pl.DataFrame
    batch: Batch


def _gather(run: Run, surface: str, features: FeatureSet) -> _Log:
    loader = Loader(
        run,
        "log",
        batch_size=GATHER_BATCH,
        features=features,
        events=False,
        order="time",
    )
    index = run.config.surfaces.index(surface)
    mine = np.flatnonzero(loader.columns["surface"] == index)
    names = ("bucket", "g", "impression_id", "user_id", "ts_us")
    ids = pl.DataFrame({n: loader.columns[n][mine].astype(np.int64) for n in names})
    parts = [_only(batch, index) for batch in loader.batches()]
    tensors = {
        f.name: torch.cat([getattr(part, f.name) for part in parts])
        for f in fields(Batch)
        if f.name != "events"
    }
    return _Log(ids=ids, batch=Batch(events={}, **tensors))


def _only(batch: Batch, surface: int) -> Batch:
    chosen = (batch.surface_B == surface).nonzero().flatten()
    names = [f.name for f in fields(Batch) if f.name != "events"]
    return Batch(events={}, **{name: getattr(batch, name)[chosen] for name in names})


def _places(ids: pl.DataFrame, stored: Representations) -> np.ndarray:
    """Where each row's own representation lies; `DataError` when one was never written."""
    lake = pl.DataFrame(
        {
            "impression_id": stored.impression_N,
            "ts_us": stored.ts_us_N,
            "place": np.arange(len(stored)),
        }
    )
    places = ids.join(lake, on=["impression_id", "ts_us"], how="left", maintain_order="left")
    missing = places.filter(pl.col("place").is_null())
    if len(missing):
        raise DataError(
            f"{len(missing)} of {len(ids)} impressions have no representation, first "
            f"{missing['impression_id'].head(3).to_list()}; run the represent stage again"
        )
    return places["place"].to_numpy()


def _labels(run: Run, ids: pl.DataFrame) -> pl.DataFrame:
    files = [
        pl.scan_parquet(bucket_file(run.output("labels"), bucket), glob=False).with_columns(
            pl.lit(bucket, dtype=pl.Int64).alias("bucket"), pl.col("g").cast(pl.Int64)
        )
        for bucket in range(run.config.window.num_buckets)
    ]
    labels = pl.concat(files).drop("impression_id", "ts_us").collect()
    return ids.join(labels, on=["bucket", "g"], how="left", maintain_order="left", validate="1:1")


def _masks(known: pl.DataFrame, names: list[str], window: Window) -> tuple[np.ndarray, np.ndarray]:
    """Which labels of which rows are trained on, and which are scored."""
    mature_RK = np.stack([known[f"mature_{n}"].to_numpy() for n in names], axis=1)
    known_us_RK = np.stack([known[f"known_{n}"].to_numpy() for n in names], axis=1)
    train_RK = mature_RK & (known_us_RK < window.cut)
    test_RK = mature_RK & (known_us_RK >= window.cut) & (known_us_RK < window.day_end)
    return train_RK, test_RK


def _histories(
    config: RunConfig, ids: pl.DataFrame, stored: Representations, own_R: np.ndarray
) -> tuple[History, History]:
    """Each row's visible representations, and its own one (which serving cannot have)."""
    index = index_by_owner(stored.user_N, stored.ts_us_N)
    length = config.transfer.sequence_len
    before_us_R = ids["ts_us"].to_numpy() - history_delay_us(config)
    begin_R, end_R = last_spans(index, ids["user_id"].to_numpy(), before_us_R, length)
    codes = torch.from_numpy(unpack(stored.z_Nd)[index.order_N])
    place_N = np.empty(len(stored), dtype=np.int64)
    place_N[index.order_N] = np.arange(len(stored))
    own = place_N[own_R]
    loop = _history(codes, begin_R, end_R, length)
    return loop.with_means(), _history(codes, own, own + 1, 1)


def _raw_history(run: Run, features: FeatureSet, ids: pl.DataFrame) -> History:
    """Each row's visible events as table rows of their attributes."""
    event = raw_event(features)
    only = replace(features, events=(event,), matches=())
    readers = [TimelineReader(run, b) for b in range(run.config.window.num_buckets)]
    pack = pack_events(only, readers)[event.name]
    user_R, ts_us_R = ids["user_id"].to_numpy(), ids["ts_us"].to_numpy()
    bucket_R = bucket_of(user_R, len(readers))
    begin_R, end_R = np.zeros(len(ids), np.int64), np.zeros(len(ids), np.int64)
    for bucket, reader in enumerate(readers):
        mine = bucket_R == bucket
        found = reader.visible(event.name, user_R[mine], ts_us_R[mine])
        begin_R[mine], end_R[mine] = (place + pack.base[bucket] for place in found)
    length = run.config.transfer.sequence_len
    ids_NA = torch.from_numpy(pack.ids_EA)
    return _history(ids_NA, np.maximum(begin_R, end_R - length), end_R, length)


def _history(stored: torch.Tensor, begin: np.ndarray, end: np.ndarray, length: int) -> History:
    return History(
        stored_NS=stored,
        begin_B=torch.from_numpy(begin),
        end_B=torch.from_numpy(end),
        length=length,
    )
