"""What students would have been served while they learned: the store, played over their span.

Every request of the span is played in event time by the run's own policy: it offers finalists, a
tick takes what fits the budget, the epoch's frozen model computes the vectors as of the tick, and
an impression finds those that had become available and still live. Students that learn from these
see in training what they will see in use (arXiv 2604.12110). Suffixes: R rows, N vectors.
"""

from __future__ import annotations

import numpy as np
import polars as pl
import torch

from model.student_sequence import History
from pipeline.loopfm.epoch import Epoch, epoch_in_force, refuse_future
from pipeline.run.errors import DataError
from pipeline.run.paths import Run
from pipeline.run.window import DAY_US, HOUR_US, days_between, window_of
from pipeline.solaris.history import VectorHistory
from pipeline.solaris.offers import Codes
from pipeline.solaris.policy import choose_pairs
from pipeline.solaris.precompute import vectors_of
from pipeline.solaris.rankings import MINUTE_US, ranking_of
from pipeline.solaris.requests import read_requests
from pipeline.solaris.serving import EXACT, NEIGHBOURS, Served
from pipeline.solaris.store import Generation, Int64s, Vectors


def play_span(run: Run) -> VectorHistory:
    """Every vector that a store would have held from `students_begin` to the end of the day."""
    window, solaris = window_of(run.config), run.config.solaris
    epoch = epoch_in_force(run)
    taught_us = int(solaris.ttl_hours * HOUR_US) + DAY_US
    days = days_between(window.students_begin - taught_us, window.day_end)
    requests = read_requests(run, days)
    codes = Codes(requests)
    chosen = choose_pairs(
        requests,
        codes,
        ranking_of(requests, codes, solaris),
        solaris,
        begin_us=window.students_begin,
        end_us=window.day_end,
    )
    pairs = pl.DataFrame(
        {"user_id": chosen.user_N, "ad_id": chosen.ad_N, "at_us": chosen.at_us_N},
        schema_overrides={"user_id": pl.Int64, "ad_id": pl.Int64, "at_us": pl.Int64},
    )
    if not len(pairs):
        raise DataError(f"no request from {days[0]} on offers a pair to compute; run ingest first")
    refuse_future(epoch, int(chosen.at_us_N.min()), "vectors")
    rows = vectors_of(run, epoch, pairs)
    written = Vectors(
        user_N=rows.user_N,
        ad_N=rows.ad_N,
        written_at_N=rows.at_us_N,
        score_N=rows.logits_NK[:, 0],
        z_Nd=rows.z_Nd,
    )
    return VectorHistory(written, _generation(run, epoch, window.day_end), solaris.neighbours)


def served_fields(served: Served) -> dict[str, History]:
    """What lookups got as fields that students read, each of one vector or none per row."""
    exact_R, near_R = served.pair_B == EXACT, served.pair_B == NEIGHBOURS
    return {
        "exact": one_or_none(served.z_Bd, exact_R),
        "neighbours": one_or_none(served.z_Bd, near_R),
        "user": one_or_none(served.user_z_Bd, served.user_B),
    }


def one_or_none(z_Rd: np.ndarray, there_R: np.ndarray) -> History:
    """Row r reads vector r where it is there."""
    place_R: Int64s = np.arange(len(z_Rd), dtype=np.int64)
    return History(
        stored_NS=torch.from_numpy(np.ascontiguousarray(z_Rd, dtype=np.float32)),
        begin_B=torch.from_numpy(place_R),
        end_B=torch.from_numpy(place_R + there_R),
        length=1,
    )


def _generation(run: Run, epoch: Epoch, as_of_us: int) -> Generation:
    solaris = run.config.solaris
    return Generation(
        fingerprint="span",
        epoch=epoch.id,
        day=run.config.day,
        fm_cut_us=epoch.fm_cut_us,
        as_of_us=as_of_us,
        ttl_us=int(solaris.ttl_hours * HOUR_US),
        delay_us=int(solaris.delay_minutes * MINUTE_US),
        width=run.config.model.representation_dim,
        dtype=run.config.transfer.quantization,
        neighbours=solaris.neighbours,
    )
