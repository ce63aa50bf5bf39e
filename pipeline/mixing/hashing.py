"""Hashes of fixed arithmetic: the same ids give the same numbers on every machine and version."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final

import numpy as np

_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_MIX_1: Final = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2: Final = np.uint64(0x94D049BB133111EB)
_ONE_PER_53_BITS: Final = float(2.0**-53)
_INT63: Final = (1 << 63) - 1
# A seed of its own: with the bucket's seed, the users of one bucket would share table rows.
_TABLE_SEED: Final = 1


def splitmix64(x: np.ndarray, seed: int = 0) -> np.ndarray:
    """SplitMix64 finalizer of integers, as uint64; distinct seeds give unrelated hashes."""
    z = np.ascontiguousarray(x, dtype=np.int64).view(np.uint64)
    if seed:
        z = z + _finalize(np.array([seed], dtype=np.int64).view(np.uint64))
    return _finalize(z)


def _finalize(z: np.ndarray) -> np.ndarray:
    z = z + _GOLDEN
    z = (z ^ (z >> np.uint64(30))) * _MIX_1
    z = (z ^ (z >> np.uint64(27))) * _MIX_2
    return z ^ (z >> np.uint64(31))


def bucket_of(user_id: np.ndarray, num_buckets: int) -> np.ndarray:
    """The bucket of each user: int64 in [0, num_buckets), the same for every table."""
    return (splitmix64(user_id) % np.uint64(num_buckets)).astype(np.int64)


def table_row(ids: np.ndarray, buckets: int) -> np.ndarray:
    """The row of each id in an embedding table of `buckets` rows, as int64."""
    return (splitmix64(ids, _TABLE_SEED) % np.uint64(buckets)).astype(np.int64)


def uniform(ids: np.ndarray, seed: int) -> np.ndarray:
    """A number in [0, 1) per id, from the top 53 bits of its hash."""
    return (splitmix64(ids, seed) >> np.uint64(11)).astype(np.float64) * _ONE_PER_53_BITS


def hash_strings(values: Iterable[str]) -> np.ndarray:
    """A non-negative int64 id per string (64 bits of BLAKE2b without the sign)."""
    digests = (hashlib.blake2b(v.encode(), digest_size=8).digest() for v in values)
    return np.array([int.from_bytes(d, "little") & _INT63 for d in digests], dtype=np.int64)
