"""Where each impression's history ends, against DuckDB; an incremental day against a rebuild.

`python -m benchmarks.timeline [--quick]`. `vs_duckdb`: processor seconds of the same answers to the
same questions, DuckDB's (ASOF or window, bucket by bucket or in one query, whichever is fastest)
over ours, imports aside. All read the same Parquet files, one per bucket as ingest leaves them;
`vs_duckdb_one_bucket`: the same rows in one file. `incremental_vs_rebuild`: processor seconds of
publishing a day's timelines from seven days of canonical files, over those from yesterday's
timelines; `at_30_days` likewise.
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks._measure import Bound, Cost, child, interleaved, report

if TYPE_CHECKING:  # a contestant imports before it is measured, and only what it needs
    import numpy as np

FULL, QUICK = (4_000_000, 8_000_000), (400_000, 800_000)  # questions, events
BUCKETS = 8
DAILY_FULL, DAILY_QUICK = 500_000, 60_000  # impressions a day, and twice as many engagements
DELAY_US = 600_000_000
TARGETS: dict[str, Bound] = {
    "vs_duckdb": (">=", 4.0),
    "incremental_vs_rebuild": (">=", 3.0),
    "differences": ("<=", 0.0),
    "differences_of_days": ("<=", 0.0),
}


def main(argv: list[str]) -> int:
    """Run the contestants and print a line each, then the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.timeline")
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args(argv).quick
    if importlib.util.find_spec("duckdb") is None:
        print(
            "this benchmark compares with DuckDB, which is not installed: "
            "pip install -r benchmarks/requirements.txt",
            file=sys.stderr,
        )
        return 1
    repeats = 1 if quick else 3
    with tempfile.TemporaryDirectory(prefix="headwater-bench-") as folder:
        rows = QUICK if quick else FULL
        figures = _ends(f"{folder}/many", rows, BUCKETS, repeats)
        whole = _ends(f"{folder}/one", rows, 1, repeats)
        figures["vs_duckdb_one_bucket"] = whole["vs_duckdb"]
        figures["differences"] += whole["differences"]
        figures |= _days(folder, DAILY_QUICK if quick else DAILY_FULL, repeats)
    return report("timeline", figures, TARGETS)


def _ends(folder: str, rows: tuple[int, int], buckets: int, repeats: int) -> dict[str, float]:
    make = partial(child, "benchmarks.timeline:make_events", folder=folder)
    make(questions=rows[0], events=rows[1], buckets=buckets)
    ours = partial(child, "benchmarks.timeline:headwater", folder=folder)
    runs = {f"headwater, {buckets}": ours}
    for form in ("asof", "window"):
        rival = partial(child, f"benchmarks.timeline:duckdb_{form}", folder=folder)
        runs |= {f"duckdb {form}, {n}": partial(rival, queries=n) for n in {1, buckets}}
    costs = interleaved(runs, repeats)
    spent = [_print(n, found) for n, found in costs.items()]
    sums = {tuple(c.value["check"]) for found in costs.values() for c in found}
    shutil.rmtree(folder)
    return {"vs_duckdb": min(spent[1:]) / spent[0], "differences": float(len(sums) - 1)}


def _days(folder: str, rows: int, repeats: int) -> dict[str, float]:
    figures = {"differences_of_days": 0.0}
    for days, name in ((7, "incremental_vs_rebuild"), (30, "incremental_at_30_days")):
        if days == 30:
            rows //= 3  # the ratio is what counts, and 30 days are long to prepare
        home = str(Path(folder) / f"days-{days}")
        child("benchmarks.timeline:make_days", home=home, days=days, rows=rows)
        day = partial(child, "benchmarks.timeline:one_day", home=home, days=days)
        runs = {how: partial(day, how=how) for how in ("rebuilt", "extended")}
        costs = interleaved(runs, repeats)
        prints = {c.value["check"] for found in costs.values() for c in found}
        figures["differences_of_days"] += len(prints) - 1
        spent = {how: _print(f"{days} days {how}", found) for how, found in costs.items()}
        figures[name] = spent["rebuilt"] / spent["extended"]
        shutil.rmtree(home)
    return figures


def _print(name: str, found: list[Cost]) -> float:
    spent = statistics.median(c.value["spent"] for c in found)
    memory = statistics.median(c.memory_mb for c in found)
    print(f"{name:22} {spent:7.2f} s of processor {memory:6.0f} MB", flush=True)
    return spent


def make_events(folder: str, questions: int, events: int, buckets: int) -> None:
    """Events and questions in time order, in buckets of users and files as ingest makes them.

    Columns: user_id, ts (us), and g, the place of a row in the whole.
    """
    import numpy as np
    import polars as pl

    from pipeline.mixing.canonical import bucket_file
    from pipeline.mixing.frames import write_frame
    from pipeline.mixing.hashing import bucket_of

    rng = np.random.default_rng(0)
    users = max(100, questions // 50)
    for name, count in (("events", events), ("questions", questions)):
        user = rng.integers(0, users, count)
        ts = np.sort(rng.integers(0, 7 * 86_400_000_000, count))
        frame = pl.DataFrame({"user_id": user, "ts": ts, "g": np.arange(count)})
        bucket = bucket_of(user, buckets)
        for b in range(buckets):
            write_frame(bucket_file(Path(folder) / name, b), frame.filter(bucket == b))


def headwater(folder: str) -> dict[str, object]:
    """Per bucket, build the event sequences and answer every question."""
    import numpy as np

    from pipeline.mixing.event_rows import integers, read_columns
    from pipeline.mixing.sequences import build_sequences
    from pipeline.mixing.visibility import History, Moments

    began = time.process_time()
    places, answers = [], []
    for path in sorted((Path(folder) / "events").iterdir()):
        events = read_columns([path], ["user_id", "ts"])
        asked = read_columns([Path(folder) / "questions" / path.name], ["user_id", "ts", "g"])
        sequences = build_sequences(integers(events["user_id"]), {"ts_us": integers(events["ts"])})
        moments = Moments(integers(asked["user_id"]), integers(asked["ts"]))
        start, end = History(sequences, DELAY_US).visible(moments)
        places.append(integers(asked["g"]))
        answers.append(end - start)
    g, seen = np.concatenate(places), np.concatenate(answers)
    spent = time.process_time() - began
    return {"spent": spent, "check": _check(g, seen)}


def duckdb_asof(folder: str, queries: int) -> dict[str, object]:
    """The latest visible event of each question by ASOF join, on numbered events."""
    query = """
        WITH numbered AS (
            SELECT user_id, ts, row_number() OVER (PARTITION BY user_id ORDER BY ts) AS place
            FROM read_parquet('{folder}/events/{files}')
        )
        SELECT g, coalesce(place, 0) AS seen
        FROM read_parquet('{folder}/questions/{files}') AS q
        ASOF LEFT JOIN numbered AS e ON q.user_id = e.user_id AND q.ts - {delay} > e.ts
    """
    return _duckdb(folder, query, queries)


def duckdb_window(folder: str, queries: int) -> dict[str, object]:
    """A running count of events over events and questions together."""
    query = """
        WITH both_kinds AS (
            SELECT user_id, ts + {delay} AS moment, 1 AS event, NULL AS g
            FROM read_parquet('{folder}/events/{files}')
            UNION ALL
            SELECT user_id, ts, 0, g FROM read_parquet('{folder}/questions/{files}')
        ), counted AS (
            SELECT g, sum(event) OVER (
                PARTITION BY user_id ORDER BY moment, event ROWS UNBOUNDED PRECEDING
            ) AS seen
            FROM both_kinds
        )
        SELECT g, CAST(seen AS BIGINT) AS seen FROM counted WHERE g IS NOT NULL
    """
    return _duckdb(folder, query, queries)


def _duckdb(folder: str, query: str, queries: int) -> dict[str, object]:
    """Answers by one query over all files, or by a query per bucket."""
    import duckdb
    import numpy as np

    connection = duckdb.connect(config={"threads": 1})
    connection.execute("SET preserve_insertion_order = false")
    names = [p.name for p in (Path(folder) / "events").iterdir()]
    began = time.process_time()
    found = [
        connection.execute(query.format(folder=folder, files=f, delay=DELAY_US)).fetchnumpy()
        for f in (["*.parquet"] if queries == 1 else names)
    ]
    g, seen = (np.concatenate([part[name] for part in found]) for name in ("g", "seen"))
    spent = time.process_time() - began
    return {"spent": spent, "check": _check(g, seen)}


def _check(g: np.ndarray, seen: np.ndarray) -> list[int]:
    """A sum that depends on every answer and its place."""
    weights = g.astype(int) % 1_000_003 + 1
    return [len(g), int(seen.sum()), int((seen.astype(int) * weights).sum())]


def make_days(home: str, days: int, rows: int) -> None:
    """Ingest `days` days and publish yesterday's timelines."""
    from benchmarks._plane_world import config_of, land, run_of, yesterday_of
    from pipeline.mixing.ingest import ingest
    from pipeline.mixing.timeline import publish_timelines
    from pipeline.run.runs import units_of

    run = run_of(Path(home), config_of(days=days, retention=days))
    land(run, rows * days, 2 * rows * days)
    for unit in units_of(run, "ingest"):
        ingest(run, unit)
    shutil.rmtree(run.landing())
    publish_timelines(yesterday_of(run), range(run.config.window.num_buckets))


def one_day(home: str, days: int, how: str) -> dict[str, object]:
    """Publish the run day's timelines, from yesterday's or with those out of sight."""
    from benchmarks._plane_world import config_of, run_of, yesterday_of
    from pipeline.mixing.timeline import publish_timelines, timeline_folder

    run = run_of(Path(home), config_of(days=days, retention=days))
    today = timeline_folder(run, 0).parent
    yesterday = timeline_folder(yesterday_of(run), 0).parent
    away = yesterday.with_name("away")
    shutil.rmtree(today, ignore_errors=True)
    if how == "rebuilt":
        yesterday.rename(away)
    began = time.process_time()
    made = publish_timelines(run, range(run.config.window.num_buckets))
    spent = time.process_time() - began
    if how == "rebuilt":
        away.rename(yesterday)
    return {"spent": spent, "check": "-".join(m.fingerprint[:8] for m in made.values())}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
