"""The Solaris store against LMDB's getmulti and redis-benchmark, its latency, writes and growth.

`python -m benchmarks store [--quick]`. Exact lookups of 200 candidates of one user (read,
checked, matched, in life, codes gathered) are compared with what a store of one key a pair could
reach at best: getmulti of 200 prepared keys in the raw library (processor time), and
redis-benchmark's GETs, pipelined 200 deep, of values as large as a stored vector, over one
connection (wall time). `with_user` is the whole `lookup`, which also makes the user's mean. p99 is
of requests in which two in five candidates have an exact vector and the neighbours are asked for
the rest, in processor time, with wall time beside it. The growth table fills stores with neighbours
off for the writes' rate and on for latency. Needs `redis-server` and `redis-benchmark` (Debian:
redis-server, redis-tools) on the PATH.
"""

from __future__ import annotations

import argparse
import csv
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks._measure import BenchmarkError, Bound, child, report

TARGETS: dict[str, Bound] = {
    "lookup_vs_lmdb": (">=", 0.70),
    "lookup_vs_redis": (">=", 0.80),
    "p99_200_ms": ("<=", 2.0),
    "writes_per_s": (">=", 50_000.0),
}
NEIGHBOURS = 32
WORLD = "benchmarks._store_world"


def main(argv: list[str]) -> int:
    """Fill, race, and print the figures and the table of growth."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks store")
    parser.add_argument("--quick", action="store_true", help="smaller stores, within a minute")
    quick = parser.parse_args(argv).quick
    sizes = (50_000, 150_000, 500_000) if quick else (1_000_000, 3_000_000, 10_000_000)
    with tempfile.TemporaryDirectory(prefix="headwater-bench-") as folder:
        figures = race_embedded(Path(folder), quick) | race_server(Path(folder), quick)
        figures |= growth(Path(folder), sizes, quick)
    for name, value in figures.items():
        print(f"{name:28} {value:12.4g}")
    return report("store", figures, TARGETS)


def race_embedded(folder: Path, quick: bool) -> dict[str, float]:
    """Exact lookups against getmulti."""
    count = 40_000 if quick else 200_000
    child(f"{WORLD}:write", folder=str(folder / "ours"), count=count, neighbours=0, equal=True)
    rounds = 5 if quick else 15
    (folder / "raw").mkdir()
    return child(f"{WORLD}:race_lmdb", folder=str(folder), requests=300, rounds=rounds).value  # type: ignore[no-any-return]


def race_server(folder: Path, quick: bool) -> dict[str, float]:
    """Exact lookups on a server against redis-benchmark on the same one, in turns."""
    rows = []
    with server(folder) as port:
        for _ in range(3 if quick else 7):
            url = f"redis://127.0.0.1:{port}/0"
            found = child(f"{WORLD}:serve_redis", url=url, requests=300, rounds=3, users=300).value
            theirs = gets_per_s(port, int(found["value_bytes"]), quick)
            rows.append((found["lookups_per_s"], found["with_user_per_s"], theirs, found["p99_ms"]))
    ratio = statistics.median(row[0] / row[2] for row in rows)
    ours, whole, theirs, slowest = (statistics.median(c) for c in zip(*rows, strict=True))
    return {
        "lookup_vs_redis": ratio,
        "redis_exact_per_s": ours,
        "redis_with_user_per_s": whole,
        "redis_benchmark_gets_per_s": theirs,
        "redis_p99_200_wall_ms": slowest,
    }


def growth(folder: Path, sizes: tuple[int, ...], quick: bool) -> dict[str, float]:
    """Bytes, memory, rates and latencies of stores of several sizes; figures of the largest."""
    print("| vectors | bytes each | writes/s | MB | with neighbours: s | MB | p99 ms | wall |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    rows = []
    for size in sizes:
        home = str(folder / f"growth-{size}")
        plain = child(f"{WORLD}:write", folder=home, count=size, neighbours=0).value
        shutil.rmtree(home)
        full = child(f"{WORLD}:write", folder=home, count=size, neighbours=NEIGHBOURS).value
        requests = 500 if quick else 2_000
        fast = child(f"{WORLD}:latencies", folder=home, requests=requests).value
        shutil.rmtree(home)
        rate, per_vector = plain["vectors"] / plain["seconds"], full["bytes"] / full["vectors"]
        rows.append((rate, per_vector, plain, full, fast))
        print(
            f"| {full['vectors']:.0f} | {per_vector:.1f} | {rate:.0f} | {plain['peak_mb']:.0f} | "
            f"{full['seconds']:.1f} | {full['peak_mb']:.0f} | {fast['p99_ms']:.3f} | "
            f"{fast['p99_wall_ms']:.3f} |",
            flush=True,
        )
    rate, per_vector, plain, full, fast = rows[-1]
    return {
        "p99_200_ms": fast["p99_ms"],
        "p50_200_ms": fast["p50_ms"],
        "p99_200_wall_ms": fast["p99_wall_ms"],
        "asked_exact": fast["exact"],
        "asked_neighbours": fast["neighbours"],
        "writes_per_s": rate,
        "writes_with_neighbours_per_s": full["vectors"] / full["seconds"],
        "write_peak_mb": plain["peak_mb"],
        "bytes_per_vector": per_vector,
        "growth_bytes_ratio": per_vector / rows[0][1],
        "growth_p99_ratio": fast["p99_ms"] / rows[0][4]["p99_ms"],
    }


@contextmanager
def server(folder: Path) -> Iterator[int]:
    """A Redis server of its own on a free loopback port."""
    for name in ("redis-server", "redis-benchmark"):
        if shutil.which(name) is None:
            raise BenchmarkError(f"{name} is not on the PATH; install redis-server and redis-tools")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", ""]
    process = subprocess.Popen(["redis-server", *options], stdout=subprocess.DEVNULL)
    try:
        for _ in range(200):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        yield port
    finally:
        process.terminate()
        process.wait(20)


def gets_per_s(port: int, size: int, quick: bool) -> float:
    """What redis-benchmark reaches with GETs of `size` bytes, 200 in each pipeline."""
    command = ["redis-benchmark", "-p", str(port), "-t", "set,get", "-d", str(size), "-P", "200"]
    command += ["-c", "1", "-r", "60000", "-n", "400000" if quick else "2000000", "--csv"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    rows = {row[0]: row[1] for row in csv.reader(done.stdout.splitlines()) if len(row) > 1}
    if done.returncode or "GET" not in rows:
        raise BenchmarkError(f"redis-benchmark ended with {done.returncode}: {done.stderr[-500:]}")
    return float(rows["GET"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
