"""Stage `predict`: which (user, ad) pairs the foundation model computes ahead of requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from pipeline.mixing.frames import write_frame
from pipeline.mixing.hashing import bucket_of
from pipeline.run.manifest import Manifest, Outcome, produce
from pipeline.run.paths import Run
from pipeline.run.window import DAY_US, day_begin_us, day_of_us
from pipeline.solaris.offers import Codes
from pipeline.solaris.policy import Chosen, choose_pairs
from pipeline.solaris.rankings import ExpectedAsks, ranking_of
from pipeline.solaris.requests import (
    Requests,
    partition_inputs,
    read_requests,
    solaris_days,
    source_table,
    taught_days,
)


def predict(run: Run, unit: str) -> Manifest:
    """Play the requests of `solaris_days` and write the pairs to compute, by shard.

    Requests of a few days before them teach the predictor.

    Writes pairs/shard=K.parquet (user_id, ad_id, at_us, priority, day), users hashed to shards,
    and requests.parquet. Figures: budget, chosen, dropped and floor, in all and by day, and by
    day the offers that the predictor learned from.
    """
    days, solaris = taught_days(run), run.config.solaris

    def build(folder: Path) -> Outcome:
        begin_us = day_begin_us(solaris_days(run)[0])
        known = read_requests(run, days)
        codes = Codes(known)
        ranking = ranking_of(known, codes, solaris)
        chosen = choose_pairs(
            known,
            codes,
            ranking,
            solaris,
            begin_us=begin_us,
            end_us=day_begin_us(run.config.day) + DAY_US,
        )
        requests = known.since(begin_us)
        _write_pairs(folder / "pairs", chosen, solaris.num_shards)
        _write_requests(folder / "requests.parquet", requests)
        figures = _figures(chosen, requests) | {"finalists_from": source_table(run)}
        if isinstance(ranking, ExpectedAsks):
            learned = {
                day_of_us(day * DAY_US): lesson.offers if lesson.model else 0
                for day, lesson in ranking.lessons.items()
            }
            figures |= {"learned_from": learned}
        return Outcome(rows=len(chosen.user_N), figures=figures)

    return produce(
        run.output("predict"),
        stage="predict",
        inputs=partition_inputs(run, days),
        settings=(solaris, days, source_table(run)),
        build=build,
    )


def pairs_file(run: Run, shard: int) -> Path:
    """The pairs of one shard."""
    return run.output("predict") / "pairs" / f"shard={shard}.parquet"


def _write_pairs(folder: Path, chosen: Chosen, num_shards: int) -> None:
    frame = pl.DataFrame(
        {
            "user_id": chosen.user_N,
            "ad_id": chosen.ad_N,
            "at_us": chosen.at_us_N,
            "priority": chosen.priority_N.astype(np.float32),
            "day": _day_names(chosen.at_us_N),
        }
    )
    shard_N = bucket_of(chosen.user_N, num_shards)
    for shard in range(num_shards):
        write_frame(folder / f"shard={shard}.parquet", frame.filter(pl.Series(shard_N == shard)))


def _write_requests(path: Path, requests: Requests) -> None:
    frame = pl.DataFrame(
        {
            "request_id": requests.request_Q,
            "user_id": requests.user_Q,
            "ts_us": requests.ts_us_Q,
            "surface": pl.Series(requests.surface_Q.tolist(), dtype=pl.String),
            "num_finalists": np.diff(requests.first_Q),
        }
    )
    write_frame(path, frame)


def _figures(chosen: Chosen, requests: Requests) -> dict[str, Any]:
    ticks = pl.DataFrame(
        {
            "day": _day_names(chosen.tick_us_T),
            "budget": chosen.budget_T,
            "dropped": chosen.dropped_T,
            "floor": chosen.floor_T,
        }
    )
    pairs = pl.DataFrame({"day": _day_names(chosen.at_us_N)})
    by_day = {
        day: {
            **ticks.filter(pl.col("day") == day).drop("day").sum().row(0, named=True),
            "chosen": len(pairs.filter(pl.col("day") == day)),
        }
        for day in ticks["day"].unique().sort()
    }
    return {
        "requests": len(requests),
        "finalists": len(requests.ad_F),
        "budget": int(chosen.budget_T.sum()),
        "chosen": len(chosen.user_N),
        "dropped": int(chosen.dropped_T.sum()),
        "floor": int(chosen.floor_T.sum()),
        "days": by_day,
    }


def _day_names(ts_us_N: np.ndarray) -> pl.Series:
    days, inverse = np.unique(ts_us_N // DAY_US, return_inverse=True)
    names = np.array([day_of_us(int(day) * DAY_US) for day in days], dtype=object)
    return pl.Series(names[inverse].tolist(), dtype=pl.String)
