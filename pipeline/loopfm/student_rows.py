"""The rows of a surface's students: features, labels by time, soft labels and histories.

Suffixes: R rows of the surface in time order, N representations, K objectives, d code width.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
import polars as pl
import torch

from model.batch import Batch
from pipeline.loopfm.compress import SCALE
from pipeline.loopfm.lake import Representations, read_representations
from pipeline.loopfm.sequence import sequence_means
from pipeline.loopfm.training import StudentRows
from pipeline.mixing.canonical import bucket_file
from pipeline.mixing.loader import Loader
from pipeline.run.config import RunConfig
from pipeline.run.errors import DataError
from pipeline.run.paths import Run
from pipeline.run.window import Window, window_of

GATHER_BATCH = 16_384
DEFAULT_DELAY_S = 600


@dataclass(frozen=True, kw_only=True)
class SurfaceRows:
    """Everything about a surface's logged impressions, in time order.

    `ids`: impression_id, user_id, ts_us. `y_RK`: labels. `train_RK`, `test_RK`: where a label
    may be trained on (known before the cut) and where it is scored (known from the cut on).
    """

    ids: pl.DataFrame
    rows: StudentRows
    y_RK: np.ndarray
    train_RK: np.ndarray
    test_RK: np.ndarray


def surface_rows(run: Run, surface: str) -> SurfaceRows:
    """Gather a surface's rows; `DataError` when nothing can be trained on or scored."""
    log = _gather(run, surface)
    stored = read_representations(run)
    own = stored.take(_places(log.ids, stored))
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
    rows = _with_transfer(run.config, batch, log.ids, stored, own.logits_NK)
    ids = log.ids.select("impression_id", "user_id", "ts_us")
    return SurfaceRows(ids=ids, rows=rows, y_RK=y_RK, train_RK=train_RK, test_RK=test_RK)


def history_delay_us(config: RunConfig) -> int:
    """How long after an impression its representation is available, as its event is."""
    shown = [e.availability_delay_s for e in config.features.events if e.source == "impressions"]
    return 1_000_000 * max(shown, default=DEFAULT_DELAY_S)


@dataclass(frozen=True, kw_only=True)
class _Log:
    ids: pl.DataFrame
    batch: Batch


def _gather(run: Run, surface: str) -> _Log:
    loader = Loader(
        run,
        "log",
        batch_size=GATHER_BATCH,
        features=run.config.features.for_students(),
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


def _with_transfer(
    config: RunConfig,
    batch: Batch,
    ids: pl.DataFrame,
    stored: Representations,
    logits_RK: np.ndarray,
) -> StudentRows:
    means = sequence_means(
        user_N=stored.user_N,
        ts_us_N=stored.ts_us_N,
        z_Nd=stored.z_Nd,
        user_R=ids["user_id"].to_numpy(),
        ts_us_R=ids["ts_us"].to_numpy(),
        length=config.transfer.sequence_len,
        delay_us=history_delay_us(config),
    )
    unit = SCALE if stored.z_Nd.dtype == np.int8 else 1
    return StudentRows(
        batch=batch,
        soft_RK=torch.sigmoid(torch.from_numpy(np.ascontiguousarray(logits_RK))),
        sequence_Rd=torch.from_numpy(means.mean_Rd / np.float32(unit)),
        # Counts grow with the epoch's age, beyond what was trained on: only "some" is said.
        count_R=torch.from_numpy((means.count_R > 0).astype(np.float32)),
    )
