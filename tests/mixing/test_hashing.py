from __future__ import annotations

import numpy as np

from pipeline.mixing.hashing import bucket_of, hash_strings, splitmix64, table_row, uniform


def test_splitmix64_matches_the_published_sequence() -> None:
    # First outputs of the reference generator with state 0: hash(0), hash(golden), ...
    states = np.array([0, 0x9E3779B97F4A7C15, 0x3C6EF372FE94F82A], dtype=np.uint64)
    expected = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert splitmix64(states.view(np.int64)).tolist() == expected


def test_seeds_give_unrelated_hashes() -> None:
    ids = np.arange(10_000)
    together = np.corrcoef(uniform(ids, 1), uniform(ids, 2))[0, 1]
    assert abs(together) < 0.05


def test_buckets_and_rows_are_even_and_independent() -> None:
    ids = np.arange(40_000)
    buckets = bucket_of(ids, 4)
    assert buckets.dtype == np.int64
    assert np.all(np.abs(np.bincount(buckets) / 10_000 - 1) < 0.05)
    rows_of_one_bucket = table_row(ids[buckets == 0], 8)
    assert np.all(np.abs(np.bincount(rows_of_one_bucket, minlength=8) / 1_250 - 1) < 0.15)


def test_scalars_and_other_integer_types_are_the_same_ids() -> None:
    small = np.array([3, 5], dtype=np.int16)
    assert bucket_of(small, 7).tolist() == bucket_of(small.astype(np.int64), 7).tolist()


def test_strings_hash_to_non_negative_ids() -> None:
    ids = hash_strings(["", "men", "women", "Ünïcode"])
    assert ids.dtype == np.int64
    assert (ids >= 0).all()
    assert len(set(ids.tolist())) == 4
    assert ids.tolist() == hash_strings(["", "men", "women", "Ünïcode"]).tolist()
