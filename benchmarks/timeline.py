"""Where each impression's history ends, against DuckDB; an incremental day against a rebuild.

`python -m benchmarks.timeline [--quick]`. `vs_duckdb`: processor seconds of the same answers to the
same questions, DuckDB's (the faster of ASOF and window) over ours; both read the columns from the
same Parquet files. `incremental_vs_rebuild`: processor seconds of publishing a day's timelines
from seven days of canonical files, over those from yesterday's timelines; `at_30_days` likewise.
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

from benchmarks._measure import Bound, Cost, child, interleaved, report

FULL, QUICK = (4_000_000, 8_000_000), (400_000, 800_000)  # questions, events
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
        figures = _ends(folder, QUICK if quick else FULL, repeats)
        figures |= _days(folder, DAILY_QUICK if quick else DAILY_FULL, repeats)
    return report("timeline", figures, TARGETS)


def _ends(folder: str, rows: tuple[int, int], repeats: int) -> dict[str, float]:
    child("benchmarks.timeline:make_events", folder=folder, questions=rows[0], events=rows[1])
    names = ("headwater", "duckdb_asof", "duckdb_window")
    runs = {n: partial(child, f"benchmarks.timeline:{n}", folder=folder) for n in names}
    costs = interleaved(runs, repeats)
    spent = {n: _print(n, found) for n, found in costs.items()}
    sums = {tuple(c.value["check"]) for found in costs.values() for c in found}
    return {
        "vs_duckdb": min(spent["duckdb_asof"], spent["duckdb_window"]) / spent["headwater"],
        "differences": float(len(sums) - 1),
    }


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
    print(f"{name:20} {spent:7.2f} s of processor {memory:6.0f} MB", flush=True)
    return spent


def make_events(folder: str, questions: int, events: int) -> None:
    """Events and questions of one bucket in time order: user_id, ts (us), and g for questions."""
    import numpy as np
    import polars as pl

    rng = np.random.default_rng(0)
    users = max(100, questions // 50)
    for name, count in (("events", events), ("questions", questions)):
        frame = pl.DataFrame(
            {
                "user_id": rng.integers(0, users, count),
                "ts": np.sort(rng.integers(0, 7 * 86_400_000_000, count)),
            }
        )
        frame.with_row_index("g").write_parquet(f"{folder}/{name}.parquet")


def headwater(folder: str) -> dict[str, object]:
    """Build the event sequences and answer every question."""
    import numpy as np
    import polars as pl

    from pipeline.mixing.sequences import build_sequences
    from pipeline.mixing.visibility import History, Moments

    began = time.process_time()
    events = pl.read_parquet(f"{folder}/events.parquet", columns=["user_id", "ts"])
    asked = pl.read_parquet(f"{folder}/questions.parquet", columns=["user_id", "ts"])
    sequences = build_sequences(events["user_id"].to_numpy(), {"ts_us": events["ts"].to_numpy()})
    moments = Moments(asked["user_id"].to_numpy(), asked["ts"].to_numpy())
    start, end = History(sequences, DELAY_US).visible(moments)
    spent = time.process_time() - began
    return {"spent": spent, "check": _check(np.asarray(end - start))}


def duckdb_asof(folder: str) -> dict[str, object]:
    """The latest visible event of each question by ASOF join, on numbered events."""
    query = """
        WITH numbered AS (
            SELECT user_id, ts, row_number() OVER (PARTITION BY user_id ORDER BY ts) AS place
            FROM read_parquet('{folder}/events.parquet')
        )
        SELECT g, coalesce(place, 0) AS seen
        FROM read_parquet('{folder}/questions.parquet') AS q
        ASOF LEFT JOIN numbered AS e ON q.user_id = e.user_id AND q.ts - {delay} > e.ts
    """
    return _duckdb(folder, query)


def duckdb_window(folder: str) -> dict[str, object]:
    """A running count of events over events and questions together."""
    query = """
        WITH both_kinds AS (
            SELECT user_id, ts + {delay} AS moment, 1 AS event, NULL AS g
            FROM read_parquet('{folder}/events.parquet')
            UNION ALL
            SELECT user_id, ts, 0, g FROM read_parquet('{folder}/questions.parquet')
        ), counted AS (
            SELECT g, sum(event) OVER (
                PARTITION BY user_id ORDER BY moment, event ROWS UNBOUNDED PRECEDING
            ) AS seen
            FROM both_kinds
        )
        SELECT g, CAST(seen AS BIGINT) AS seen FROM counted WHERE g IS NOT NULL
    """
    return _duckdb(folder, query)


def _duckdb(folder: str, query: str) -> dict[str, object]:
    import duckdb
    import numpy as np

    connection = duckdb.connect(config={"threads": 1})
    connection.execute("SET preserve_insertion_order = false")
    began = time.process_time()
    found = connection.execute(query.format(folder=folder, delay=DELAY_US)).fetchnumpy()
    spent = time.process_time() - began
    seen = np.zeros(len(found["g"]), np.int64)
    seen[np.asarray(found["g"]).astype(np.int64)] = np.asarray(found["seen"])
    return {"spent": spent, "check": _check(seen)}


def _check(seen: object) -> list[int]:
    """A sum that depends on every answer and its place."""
    import numpy as np

    values = np.asarray(seen).astype(np.int64)
    weights = np.arange(len(values)) % 1_000_003 + 1
    return [int(values.sum()), int((values * weights).sum())]


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
