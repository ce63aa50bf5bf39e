"""Generations for the store's benchmark, and one process's part of it each. N vectors, d width."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

import lmdb
import numpy as np

from pipeline.run.window import HOUR_US
from pipeline.solaris.lookup import exact, lookup
from pipeline.solaris.records import layout_of, rows_of
from pipeline.solaris.serving import EXACT, NEIGHBOURS, Served
from pipeline.solaris.store import VECTORS, Generation, Int64s, Reading, Vectors
from pipeline.solaris.stores import Place, open_store
from pipeline.solaris.vector_store import VectorStore

AS_OF: Final = 490_000 * HOUR_US
WIDTH: Final = 16  # of the shipped model's representations
ADS: Final = 5_000
CANDIDATES: Final = 200
PER_USER: Final = 50  # vectors on average, geometrically distributed
USERS_A_BATCH: Final = 5_000


def generation(neighbours: int) -> Generation:
    """The generation that every measurement writes."""
    return Generation(
        fingerprint=f"benchmark-{neighbours}",
        epoch="benchmark",
        day="2025-11-24",
        fm_cut_us=0,
        as_of_us=AS_OF,
        ttl_us=24 * HOUR_US,
        delay_us=0,
        width=WIDTH,
        dtype="int8",
        neighbours=neighbours,
    )


def batches(count: int, *, equal: bool) -> Iterator[Vectors]:
    """About `count` vectors by whole users: `CANDIDATES` each when `equal`, else skewed.

    Users have tastes in a hundred groups; popular ads are asked for more.
    """
    rng = np.random.default_rng(0)
    centre_Gd = rng.standard_normal((100, WIDTH))
    user = 0
    while count > 0:
        users = min(USERS_A_BATCH, -(-count // (CANDIDATES if equal else PER_USER)))
        size_U = rng.geometric(1 / PER_USER, users)
        size_U = np.full(users, CANDIDATES) if equal else size_U
        user_N = np.repeat(np.arange(user, user + users), size_U)
        total = len(user_N)
        ad_N = (ADS * rng.random(total) ** 2).astype(np.int64)
        if equal:
            ad_N = np.concatenate([rng.permutation(ADS)[:CANDIDATES] for _ in range(users)])
        taste_Nd = centre_Gd[user_N % 100] + rng.standard_normal((total, WIDTH))
        yield Vectors(
            user_N=user_N,
            ad_N=ad_N,
            written_at_N=AS_OF - rng.integers(1, 23 * HOUR_US, total),
            score_N=rng.random(total, dtype=np.float32),
            z_Nd=np.clip(40 * taste_Nd, -127, 127).astype(np.int8),
        )
        user, count = user + users, count - total


def write(folder: str, count: int, neighbours: int, equal: bool = False) -> dict[str, float]:
    """Publish into an embedded store: vectors, seconds of the store alone, bytes, peak memory.

    Making the vectors is not counted.
    """
    made_s = 0.0

    def timed() -> Iterator[Vectors]:
        nonlocal made_s
        source = batches(count, equal=equal)
        while True:
            began = time.perf_counter()
            batch = next(source, None)
            made_s += time.perf_counter() - began
            if batch is None:
                return
            yield batch

    with open_store(Path(folder), write=True) as store:
        began = time.perf_counter()
        kept = store.publish(generation(neighbours), timed())
        seconds = time.perf_counter() - began - made_s
        size = store.shelf.used_bytes()
    # what is dirty in the map belongs to the file; the rest is the writer's own
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"vectors": kept, "seconds": seconds, "bytes": size, "peak_mb": peak_mb}


def latencies(folder: str, requests: int) -> dict[str, float]:
    """p99 of requests for one user's `CANDIDATES` in milliseconds, processor time and wall time.

    Two in five candidates have an exact vector where the user has that many.
    """
    with open_store(Path(folder)) as store:
        asks = _asks(store, requests, exact=2 * CANDIDATES // 5)
        served = [_whole(store, ask).pair_B for ask in asks]  # and warm
        busy_ms, wall_ms = _times(lambda ask: _whole(store, ask), asks)
    pairs = np.concatenate(served)
    return {
        "p50_ms": float(np.median(busy_ms)),
        "p99_ms": float(np.quantile(busy_ms, 0.99)),
        "p99_wall_ms": float(np.quantile(wall_ms, 0.99)),
        "exact": float((pairs == EXACT).mean()),
        "neighbours": float((pairs == NEIGHBOURS).mean()),
    }


def race_lmdb(folder: str, requests: int, rounds: int) -> dict[str, float]:
    """Exact lookups against LMDB's own getmulti of the same vectors, a key each, in turns."""
    with open_store(Path(folder) / "ours") as store:
        asks = _asks(store, requests, exact=CANDIDATES)
        path = str(Path(folder) / "raw")
        with lmdb.open(path, map_size=1 << 30, max_readers=8) as raw:
            keys = _write_raw(raw, store)
            wanted = [[keys[int(u), int(a)] for u, a in zip(*ask, strict=True)] for ask in asks]
            rates = []
            for _ in range(rounds):
                raw_rate = _rate(lambda some: _getmulti(raw, some), wanted)
                ours = _rate(lambda ask: _vectors(store, ask), asks)
                whole = _rate(lambda ask: _whole(store, ask), asks)
                rates.append((ours / raw_rate, whole / raw_rate, ours, whole, raw_rate))
    names = ("lookup_vs_lmdb", "with_user_vs_lmdb", "exact_per_s", "with_user_per_s")
    medians = np.median(np.array(rates), axis=0).tolist()
    return dict(zip((*names, "getmulti_per_s"), medians, strict=True))


def serve_redis(url: str, requests: int, rounds: int, users: int) -> dict[str, float]:
    """Exact lookups a second of wall time on a server, the median of rounds, and p99."""
    place = Place(url=url, lineage="benchmark")
    with open_store(place, write=True) as store:
        store.publish(generation(0), batches(users * CANDIDATES, equal=True))
    with open_store(place, timeout_s=5.0) as store:
        asks = _asks(store, requests, exact=CANDIDATES)
        found = []
        for _ in range(rounds):
            _, wall_ms = _times(lambda ask: _vectors(store, ask), asks)
            _, whole_ms = _times(lambda ask: _whole(store, ask), asks)
            p99_ms = float(np.quantile(whole_ms, 0.99))
            found.append((1e3 / wall_ms.mean(), 1e3 / whole_ms.mean(), p99_ms))
    exact_rate, whole_rate, p99_ms = np.median(np.array(found), axis=0).tolist()
    return {
        "lookups_per_s": CANDIDATES * exact_rate,
        "with_user_per_s": CANDIDATES * whole_rate,
        "p99_ms": p99_ms,
        "value_bytes": float(layout_of("int8", WIDTH).itemsize),
    }


def _asks(store: VectorStore, requests: int, exact: int) -> list[tuple[Int64s, Int64s]]:
    """Requests of random users: `exact` candidates of what the user has, the rest at random."""
    rng = np.random.default_rng(1)
    current = store.current()
    if current is None:
        raise ValueError("the store is empty")
    users = np.array([u for c in store.shelf.scan(current.number, VECTORS) for u, _ in c])
    asks = []
    for user in rng.choice(users, requests):
        records = store.shelf.read(partial(_records, user))
        own = rows_of(records, current.generation).rows_E["ad"].astype(np.int64)
        some = rng.permutation(own)[:exact]
        rest = (ADS * rng.random(CANDIDATES - len(some)) ** 2).astype(np.int64)
        ad = rng.permutation(np.concatenate([some, rest]))
        asks.append((np.full(CANDIDATES, user), ad))
    return asks


def _write_raw(raw: lmdb.Environment, store: VectorStore) -> dict[tuple[int, int], bytes]:
    """Every vector under a key of its own; the keys by user and ad."""
    current = store.current()
    keys: dict[tuple[int, int], bytes] = {}
    if current is None:
        return keys
    for chunk in store.shelf.scan(current.number, VECTORS):
        items = []
        for user, record in chunk:
            rows_E = rows_of([record], current.generation).rows_E
            size, data = rows_E.dtype.itemsize, rows_E.tobytes()
            for i, ad in enumerate(rows_E["ad"].tolist()):
                key = user.to_bytes(8, "big") + ad.to_bytes(8, "big")
                keys[user, ad] = key
                items.append((key, data[i * size : (i + 1) * size]))
        with raw.begin(write=True) as txn, txn.cursor() as cursor:
            cursor.putmulti(items)
    return keys


def _getmulti(raw: lmdb.Environment, keys: list[bytes]) -> None:
    with raw.begin() as txn, txn.cursor() as cursor:
        if len(cursor.getmulti(keys)) != len(keys):
            raise ValueError("getmulti lost some")


def _vectors(store: VectorStore, ask: tuple[Int64s, Int64s]) -> np.ndarray:
    """The codes of exact lookups, all of which must be found."""
    user_B, ad_B = ask
    own = store.shelf.read(lambda reading: exact(reading, user_B[:1], ad_B, AS_OF))
    if not own.found_B.all():
        raise ValueError("an exact lookup found nothing")
    return own.of(own.rows.z_Ed)


def _whole(store: VectorStore, ask: tuple[Int64s, Int64s]) -> Served:
    user_B, ad_B = ask
    return lookup(store, user_B, ad_B, AS_OF)


def _records(user: int, reading: Reading) -> list[bytes | None]:
    return reading.get(VECTORS, np.array([user]))


def _rate(call: Callable[..., object], asks: list) -> float:
    """Vectors a second of processor time."""
    began = time.process_time()
    for ask in asks:
        call(ask)
    return CANDIDATES * len(asks) / (time.process_time() - began)


def _times(call: Callable[..., object], asks: list) -> tuple[np.ndarray, np.ndarray]:
    """Milliseconds of the thread and of the clock, call by call."""
    busy, wall = [], []
    for ask in asks:
        began, clock = time.thread_time(), time.perf_counter()
        call(ask)
        wall.append(time.perf_counter() - clock)
        busy.append(time.thread_time() - began)
    return 1e3 * np.array(busy), 1e3 * np.array(wall)
