from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from solaris_world import (
    DAY,
    FINALISTS,
    days_up_to,
    fill_lake,
    finalists,
    make_run,
    publish_candidates,
)

from pipeline.run.config import SolarisConfig
from pipeline.run.errors import DataError
from pipeline.run.presets import preset
from pipeline.run.window import DAY_US, HOUR_US, day_begin_us
from pipeline.solaris.candidates import pairs_file, predict
from pipeline.solaris.offers import Codes
from pipeline.solaris.policy import Chosen, choose_pairs
from pipeline.solaris.rankings import ranking_of
from pipeline.solaris.requests import Requests, group_requests, read_requests

BEGIN = day_begin_us(DAY)


def requests_of(rows: list[tuple[float, int, list[int]]]) -> Requests:
    """Requests from (hour, user, ads best first)."""
    flat = [
        (q, user, "feed", BEGIN + int(hour * HOUR_US), ad, rank, -float(rank))
        for q, (hour, user, ads) in enumerate(rows)
        for rank, ad in enumerate(ads)
    ]
    names = ["request_id", "user_id", "surface", "ts_us", "ad_id", "rank", "score"]
    return group_requests(pl.DataFrame(flat, schema=names, orient="row"))


def play(rows: list[tuple[float, int, list[int]]], hours: float = 24, **config: object) -> Chosen:
    settings = SolarisConfig(
        **{"vectors_per_request": 2.0, "tick_minutes": 60.0, "policy": "recent", **config}  # type: ignore[arg-type]
    )
    return chosen_of(requests_of(rows), settings, BEGIN, BEGIN + int(hours * HOUR_US))


def chosen_of(requests: Requests, settings: SolarisConfig, begin_us: int, end_us: int) -> Chosen:
    codes = Codes(requests)
    ranking = ranking_of(requests, codes, settings)
    return choose_pairs(requests, codes, ranking, settings, begin_us=begin_us, end_us=end_us)


def listed(chosen: Chosen) -> list[tuple[int, int, float]]:
    hours = (chosen.at_us_N - BEGIN) / HOUR_US
    return list(zip(chosen.user_N.tolist(), chosen.ad_N.tolist(), hours.tolist(), strict=True))


def test_best_ranks_within_the_budget_and_the_rest_counted() -> None:
    chosen = play([(0.5, 1, [7, 8, 9])])
    assert listed(chosen)[:2] == [(1, 7, 1.0), (1, 8, 1.0)]
    assert chosen.budget_T[0] == 2
    assert chosen.dropped_T[0] == 1


def test_a_pair_that_came_twice_outranks_one_that_came_once() -> None:
    chosen = play([(0.2, 1, [8, 7]), (0.6, 1, [9, 8])], vectors_per_request=0.5)
    assert listed(chosen)[0] == (1, 8, 1.0)


def test_nothing_is_computed_before_its_request() -> None:
    chosen = play([(1.5, 1, [7]), (5.5, 2, [8])])
    first = {u: min(h for v, _, h in listed(chosen) if v == u) for u in (1, 2)}
    assert first == {1: 2.0, 2: 6.0}


def test_a_fresh_pair_is_not_computed_again_before_refresh() -> None:
    every_hour = [(h + 0.5, 1, [7, 8]) for h in range(30)]
    chosen = play(every_hour, hours=31, refresh_at=0.9)
    at = [h for _, ad, h in listed(chosen) if ad == 8]
    assert at == [1.0, 23.0]  # the first tick at an age of 21.6 hours or more


def test_a_user_without_a_recent_vector_goes_first() -> None:
    rows = [(0.1 + h, 1, [7]) for h in range(24)]
    rows += [(0.2, 2, [9, 8])]
    chosen = play(sorted(rows), vectors_per_request=1.0, ttl_hours=10.0)
    at = [h for u, _, h in listed(chosen) if u == 2]
    # at 6 both users are due and the budget is one; after 10 hours user 2 counts as gone
    assert at == [1.0, 7.0]
    assert chosen.floor_T.sum() >= 4


def test_budget_is_never_exceeded_and_fractions_are_carried() -> None:
    rows = [(h * 0.1, h % 50, list(range(h % 7, h % 7 + 10))) for h in range(230)]
    chosen = play(rows, vectors_per_request=1.3)
    used = np.array([(chosen.at_us_N == t).sum() for t in chosen.tick_us_T])
    assert (used <= chosen.budget_T).all()
    assert chosen.budget_T.sum() == int(1.3 * 230)


def test_a_pair_is_chosen_at_most_once_per_tick() -> None:
    rows = [(h * 0.1, h % 5, [1, 2, 3, 4]) for h in range(200)]
    picks = listed(play(rows, ttl_hours=2.0))
    assert len(picks) == len(set(picks))


def test_an_empty_day_is_no_pairs(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    publish_candidates(run, DAY, finalists(run.config, DAY).clear())
    manifest = predict(run, "")
    assert (manifest.rows, manifest.read_figures()["budget"]) == (0, 0)
    assert pl.read_parquet(pairs_file(run, 0)).columns[0] == "user_id"


def test_no_requests_is_no_pairs() -> None:
    empty = requests_of([(0.5, 1, [7])])
    chosen = chosen_of(empty, SolarisConfig(), BEGIN + DAY_US, BEGIN + DAY_US)
    assert len(chosen.user_N) == 0


def test_the_stage_writes_shards_and_figures(tmp_path: Path) -> None:
    run = make_run(tmp_path, num_shards=2)
    fill_lake(run, days_up_to(DAY, 2))
    manifest = predict(run, "")
    figures = manifest.read_figures()
    shards = [pl.read_parquet(pairs_file(run, shard)) for shard in range(2)]
    assert sum(map(len, shards)) == manifest.rows == figures["chosen"]
    assert not set(shards[0]["user_id"]) & set(shards[1]["user_id"])
    assert figures["chosen"] <= figures["budget"]
    assert figures["dropped"] > 0
    assert figures["finalists_from"] == "candidates"
    assert sorted(figures["days"]) == list(days_up_to(DAY, 2))
    assert predict(run, "").fingerprint == manifest.fingerprint


def test_the_same_inputs_give_the_same_bytes(tmp_path: Path) -> None:
    prints = []
    for name in ("a", "b"):
        run = make_run(tmp_path / name)
        fill_lake(run, days_up_to(DAY, 2))
        prints.append(predict(run, "").fingerprint)
    assert prints[0] == prints[1]


def test_without_candidates_the_impressions_are_the_finalists(tmp_path: Path) -> None:
    run = make_run(tmp_path, candidates=False)
    fill_lake(run, days_up_to(DAY, 1))
    requests = read_requests(run, days_up_to(DAY, 2))
    assert set(np.diff(requests.first_Q)) == {2}
    assert predict(run, "").read_figures()["finalists_from"] == "impressions"


def test_a_day_without_requests_is_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    fill_lake(run, days_up_to("2026-11-28", 1))
    with pytest.raises(DataError, match="candidates of 2026-11-29 are not in the lake"):
        predict(run, "")


def test_a_large_day_takes_seconds() -> None:
    config = preset(DAY, "smoke")
    rows = finalists(config, DAY)
    count = 20_000
    copies = pl.concat(
        [
            rows.with_columns(pl.col("request_id") + 10**7 * i, pl.col("user_id") + 100 * i)
            for i in range(count * FINALISTS // len(rows) + 1)
        ]
    ).with_columns(pl.col("ts").dt.epoch("us").alias("ts_us"))
    requests = group_requests(copies)
    began = time.perf_counter()
    chosen = chosen_of(requests, SolarisConfig(), BEGIN, BEGIN + DAY_US)
    assert len(chosen.user_N) > count
    assert time.perf_counter() - began < 20
