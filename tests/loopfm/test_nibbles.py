from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.loopfm.nibbles import FIT_CODES, INT4, Packed, codebook, is_packed, pack_nibbles
from pipeline.run.errors import DataError

KINDS = ["int4", "kmeans4"]


def codes(rows: int = 200, width: int = 7) -> np.ndarray:
    return np.tanh(np.random.default_rng(0).normal(size=(rows, width))).astype(np.float32)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [1, 7, 8])
def test_packing_again_gives_the_same_bytes(kind: Any, width: int) -> None:
    z = codes(width=width)
    values = codebook(z, kind)
    packed = pack_nibbles(z, values)
    assert packed.bytes_NY.shape == (200, (width + 1) // 2)
    unpacked = packed.unpack()
    assert unpacked.shape == z.shape
    assert set(np.unique(unpacked)) <= set(values)
    assert np.array_equal(pack_nibbles(unpacked, values).bytes_NY, packed.bytes_NY)


def test_int4_is_eight_times_rounded() -> None:
    z = codes()
    expected = np.clip(np.rint(8 * z.astype(np.float64)), -8, 7) / 8
    far = np.abs(8 * z % 1 - 0.5) > 1e-5  # ties may go either way
    assert np.array_equal(pack_nibbles(z, INT4).unpack()[far], expected[far].astype(np.float32))


def test_fitted_values_are_nearer_than_fixed_ones() -> None:
    z = (codes() * 0.3).astype(np.float32)
    error = {k: np.square(pack_nibbles(z, codebook(z, k)).unpack() - z).mean() for k in KINDS}  # type: ignore[arg-type]
    assert error["kmeans4"] < 0.2 * error["int4"]


def test_values_are_fitted_to_all_places_of_a_vector() -> None:
    # a step through single codes would be as wide as a vector here, and see its first place alone
    z = np.random.default_rng(0).uniform(-1, 1, (FIT_CODES, 4)).astype(np.float32)
    z *= np.array([0.01, 0.2, 0.5, 1.0], dtype=np.float32)
    fitted = pack_nibbles(z, codebook(z, "kmeans4")).unpack()
    assert np.square(fitted - z).mean() < np.square(pack_nibbles(z, INT4).unpack() - z).mean()


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-1, 1, width=32), min_size=1, max_size=40))
def test_every_code_goes_to_its_nearest_value(found: list[float]) -> None:
    z = np.array(found, dtype=np.float32)[:, None]
    values = codebook(codes(), "kmeans4")
    nearest = np.abs(z - values).min(axis=1)
    assert np.allclose(np.abs(pack_nibbles(z, values).unpack() - z)[:, 0], nearest, atol=1e-6)


@pytest.mark.parametrize("rows", [0, 3])
def test_arrow_round_trip(rows: int) -> None:
    packed = pack_nibbles(codes(rows), codebook(codes(), "kmeans4"))
    field, column = packed.to_arrow()
    table = pa.table([column], schema=pa.schema([field]))
    assert is_packed(table.schema.field("z"))
    again = Packed.of_arrow(table.schema.field("z"), table["z"])
    assert np.array_equal(again.unpack(), packed.unpack())


def test_not_a_number_has_no_code() -> None:
    z = codes()
    z[4, 1] = np.nan
    with pytest.raises(DataError, match=r"1 of 200 vectors .* first at row 4"):
        pack_nibbles(z, INT4)
