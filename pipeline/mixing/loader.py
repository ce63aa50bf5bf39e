"""The loader: a selection of the mix as batches of tensors, in order, from any position.

Everything is packed into a few matrices once; a batch is a slice of them. A thread prepares
the next batches while the model works on the last one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
import polars as pl
import torch

from model.batch import Batch, EventBatch, Sharing
from model.config import FeatureSet
from pipeline.mixing.balance import balanced_steps, even_bounds
from pipeline.mixing.hashing import bucket_of
from pipeline.mixing.mix import SELECTIONS
from pipeline.mixing.packing import (
    EventPack,
    EventSlice,
    dense_values,
    feature_columns,
    pack_events,
    sparse_ids,
)
from pipeline.mixing.prefetch import prefetched
from pipeline.mixing.selection import (
    Ranks,
    Share,
    Span,
    feature_values,
    picked_rows,
    row_costs,
    share_of,
)
from pipeline.mixing.timeline import TimelineReader, check_timelines
from pipeline.run.errors import ConfigError, DataError
from pipeline.run.manifest import need_manifest
from pipeline.run.paths import Run

Selection = Literal["train", "holdout", "log"]


class Loader:
    """Batches of one selection of a run's mix.

    `begin_us` and `end_us` bound the label time ([begin, end)). `features` chooses columns (for
    students: `FeatureSet.for_students()`), `events=False` leaves histories out. Order "time" is
    ascending label time (ties by bucket and row), "none" is that of the files. `columns` holds
    numpy arrays in loader order: g, bucket, impression_id, user_id, ad_id, request_id, ts_us,
    label_us, surface, and y_*, m_*, w_* per objective.

    Of `world_size` ranks this one reads the buckets that fall to `rank`, and nothing else stays in
    memory. Batch i of all ranks together has about `batch_size` rows; which ones, and on which
    rank, follows from the mix, `batch_size` and `world_size`. In order "time" every rank has about
    as many events to read in each batch, for which rows move by a few batches
    (`pipeline.mixing.balance`).
    """

    def __init__(
        self,
        run: Run,
        selection: Selection = "train",
        *,
        begin_us: int | None = None,
        end_us: int | None = None,
        batch_size: int,
        features: FeatureSet | None = None,
        events: bool = True,
        order: Literal["time", "none"] = "time",
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        if selection not in SELECTIONS:
            raise ConfigError(f"selection must be one of {list(SELECTIONS)}, got {selection!r}")
        if batch_size < 1:
            raise ConfigError(f"batch_size must be above 0, got {batch_size}; use 512")
        need_manifest(run.output("mix"))
        self.run, self.batch_size = run, batch_size
        self.features = features or run.config.features
        self.objectives = [o.name for o in run.config.objectives]
        span = Span(selection=selection, begin_us=begin_us, end_us=end_us)
        ranks = Ranks(rank=rank, world_size=world_size)
        share = share_of(run, span, self.features, ranks=ranks, batch_size=batch_size)
        picked = picked_rows(run, span, share.buckets)
        place, self._bounds = _placed(self, picked, share, in_time=order == "time")
        values, dense = feature_values(run, self.features, picked)
        picked = picked[place]
        self._ids_NF, self._dense_NC = values[place], dense[place]
        self._packs, self._spans = self._pack(picked, share.buckets) if events else ({}, {})
        plain = [n for n in picked.columns if not n.startswith(("start_", "end_"))]
        self.columns: dict[str, np.ndarray] = {n: picked[n].to_numpy() for n in plain}
        self._tasks = {
            p: np.stack([self.columns[f"{p}_{n}"].astype(np.float32) for n in self.objectives], 1)
            for p in ("y", "m", "w")
        }

    @property
    def num_rows(self) -> int:
        """Rows of the selection within the bounds that this rank holds."""
        return len(self._ids_NF)

    @property
    def num_batches(self) -> int:
        """Batches of a full pass, the last one possibly smaller; the same on every rank."""
        return len(self._bounds) - 1

    @property
    def lengths(self) -> dict[str, np.ndarray]:
        """Events that each row reads, by event type, in the loader's order."""
        return {
            name: np.minimum(end - start, self._packs[name].max_len)
            for name, (start, end) in self._spans.items()
        }

    def batches(self, start: int = 0) -> Iterator[Batch]:
        """Batches from index `start` on, prepared ahead by a thread."""
        return prefetched(self.batch, range(start, self.num_batches))

    def batch(self, index: int) -> Batch:
        """The batch of an index in [0, num_batches)."""
        return self.rows(self.first_row(index), self.first_row(index + 1))

    def first_row(self, index: int) -> int:
        """The place in the loader's order at which a batch begins; `num_batches`: the end."""
        return int(self._bounds[index])

    def rows(self, begin: int, end: int) -> Batch:
        """The rows [begin, end) of the loader's order as one batch."""
        rows = slice(begin, end)
        ts = self.columns["ts_us"][rows]
        slices = {
            name: pack.slice(self._spans[name][0][rows], self._spans[name][1][rows], ts)
            for name, pack in self._packs.items()
        }
        return _batch(
            ids_NF=self._ids_NF[rows],
            dense_NC=self._dense_NC[rows],
            slices=slices,
            surface=self.columns["surface"][rows],
            tasks={p: values[rows] for p, values in self._tasks.items()},
            row=np.arange(rows.start, rows.stop),
        )

    def _pack(
        self, picked: pl.DataFrame, buckets: Sequence[int]
    ) -> tuple[dict[str, EventPack], dict[str, tuple[np.ndarray, np.ndarray]]]:
        check_timelines(self.run)
        packs = pack_events(self.features, [TimelineReader(self.run, b) for b in buckets])
        place = np.searchsorted(buckets, picked["bucket"].to_numpy())
        spans = {
            name: (
                picked[f"start_{name}"].to_numpy() + pack.base[place],
                picked[f"end_{name}"].to_numpy() + pack.base[place],
            )
            for name, pack in packs.items()
        }
        return packs, spans


class BatchAssembler:
    """Batches of ad-hoc rows: any user with any ad at any moment, as the run's timelines saw it."""

    def __init__(self, run: Run, *, features: FeatureSet | None = None) -> None:
        self.run, self.features = run, features or run.config.features
        buckets = range(run.config.window.num_buckets)
        self._readers = [TimelineReader(run, b) for b in buckets]
        self._packs = pack_events(self.features, self._readers)

    def assemble(self, rows: pl.DataFrame) -> Batch:
        """The batch of `rows`, in their order: labels and masks 0, weights 1.

        Needs user_id, ad_id, ts_us, surface (index), every sparse and dense feature column and
        the keys of the match counts; `DataError` names what is missing.
        """
        self._check(rows)
        ids_NF = sparse_ids(self.features, rows)
        return self._assembled(rows, ids_NF, np.arange(len(rows)))

    def assemble_shared(self, rows: pl.DataFrame) -> tuple[Batch, Sharing]:
        """As `assemble`, with the events of each (user, time) once (`FoundationModel.candidates`).

        Rows share a history where they agree in user, time and every feature that is not the ad's.
        """
        self._check(rows)
        ids_NF = sparse_ids(self.features, rows)
        common = [f for f, feature in enumerate(self.features.sparse) if feature.scope != "ad"]
        whose = rows.select("user_id", "ts_us").to_numpy()
        keys_NX = np.concatenate([whose, ids_NF[:, common]], axis=1)
        _, first_U, owner_N = np.unique(keys_NX, axis=0, return_index=True, return_inverse=True)
        sharing = Sharing(
            owner_B=torch.from_numpy(owner_N.astype(np.int64)), first_U=torch.from_numpy(first_U)
        )
        return self._assembled(rows, ids_NF, first_U), sharing

    def _check(self, rows: pl.DataFrame) -> None:
        keys = [m.key for m in self.features.matches]
        wanted = ["user_id", "ad_id", "ts_us", "surface", *feature_columns(self.features), *keys]
        missing = sorted(set(wanted) - set(rows.columns))
        if missing:
            raise DataError(f"rows to assemble lack {missing}; add the columns")

    def _assembled(self, rows: pl.DataFrame, ids_NF: np.ndarray, told_U: np.ndarray) -> Batch:
        """All rows, and the histories of the rows `told_U` alone."""
        user, ts = rows["user_id"].to_numpy(), rows["ts_us"].to_numpy()
        bucket = bucket_of(user, len(self._readers))
        of_users = (user[told_U], ts[told_U], bucket[told_U])
        shape = (len(rows), len(self.objectives))
        return _batch(
            ids_NF=ids_NF,
            dense_NC=dense_values(self.features, self._with_matches(rows, bucket)),
            slices={n: self._visible(n, *of_users) for n in self._packs},
            surface=rows["surface"].to_numpy(),
            tasks={"y": np.zeros(shape), "m": np.zeros(shape), "w": np.ones(shape)},
            row=np.arange(len(rows)),
        )

    @property
    def objectives(self) -> list[str]:
        """Names of the objectives, in batch order."""
        return [o.name for o in self.run.config.objectives]

    def _visible(
        self, event: str, user: np.ndarray, ts: np.ndarray, bucket: np.ndarray
    ) -> EventSlice:
        begin, end = np.zeros(len(user), np.int64), np.zeros(len(user), np.int64)
        pack = self._packs[event]
        for b, reader in enumerate(self._readers):
            mine = bucket == b
            found = reader.visible(event, user[mine], ts[mine])
            begin[mine], end[mine] = (p + pack.base[b] for p in found)
        return pack.slice(begin, end, ts)

    def _with_matches(self, rows: pl.DataFrame, bucket: np.ndarray) -> pl.DataFrame:
        user, ts = rows["user_id"].to_numpy(), rows["ts_us"].to_numpy()
        for match in self.features.matches:
            counts = np.zeros((2, len(rows)), dtype=np.float32)
            key = rows[match.key].to_numpy()
            for b, reader in enumerate(self._readers):
                mine = bucket == b
                counts[:, mine] = reader.match_counts(match, user[mine], key[mine], ts[mine])
            rows = rows.with_columns(
                pl.Series(n, c) for n, c in zip(match.columns, counts, strict=True)
            )
        return rows


def _placed(
    loader: Loader, picked: pl.DataFrame, share: Share, *, in_time: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Which picked row comes at each place of the loader's order, and where each batch begins."""
    place = np.arange(len(picked))
    bounds = even_bounds(len(picked), share.total_rows or len(picked), loader.batch_size)
    if not in_time:
        return place, bounds
    place = np.argsort(picked["label_us"].to_numpy(), kind="stable")
    if share.parts_W is None:
        return place, bounds
    cost = row_costs(loader.features, picked)[place]
    order, bounds = balanced_steps(cost, share.parts_W, len(bounds) - 1)
    return place[order], bounds


def _batch(
    *,
    ids_NF: np.ndarray,
    dense_NC: np.ndarray,
    slices: dict[str, EventSlice],
    surface: np.ndarray,
    tasks: dict[str, np.ndarray],
    row: np.ndarray,
) -> Batch:
    events = {
        name: EventBatch(
            ids_EA=torch.from_numpy(s.ids_EA),
            lengths_B=torch.from_numpy(s.lengths_N),
            gap_E=torch.from_numpy(s.gap_E),
            age_E=torch.from_numpy(s.age_E),
        )
        for name, s in slices.items()
    }
    return Batch(
        ids_BF=torch.from_numpy(ids_NF.astype(np.int64)),
        dense_BC=torch.from_numpy(np.ascontiguousarray(dense_NC)),
        events=events,
        surface_B=torch.from_numpy(surface.astype(np.int64)),
        labels_BK=torch.from_numpy((tasks["y"] * tasks["m"]).astype(np.float32)),
        mask_BK=torch.from_numpy(tasks["m"].astype(np.float32)),
        weight_BK=torch.from_numpy(tasks["w"].astype(np.float32)),
        row_B=torch.from_numpy(row.astype(np.int64)),
    )
