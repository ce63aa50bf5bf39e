from __future__ import annotations

import numpy as np
import pytest

from pipeline.loopfm.compress import from_arrow, is_broken, pack, to_arrow, unpack
from pipeline.run.errors import DataError


def codes(rows: int = 64, width: int = 8) -> np.ndarray:
    return np.tanh(np.random.default_rng(0).normal(size=(rows, width))).astype(np.float32)


def test_int8_is_close_and_packs_exactly_again() -> None:
    z = codes()
    stored = pack(z, "int8")
    assert stored.dtype == np.int8
    assert np.abs(unpack(stored) - z).max() <= 0.5 / 127 + 1e-6
    assert np.array_equal(pack(unpack(stored), "int8"), stored)


def test_every_int8_code_survives() -> None:
    every = np.arange(-127, 128, dtype=np.int8).reshape(-1, 1)
    assert np.array_equal(pack(unpack(every), "int8"), every)


def test_float32_is_unchanged() -> None:
    z = codes()
    assert np.array_equal(unpack(pack(z, "float32")), z)


def test_not_a_number_is_found_after_packing() -> None:
    z = codes()
    z[3, 2] = np.nan
    for quantization in ("int8", "float32"):
        assert list(np.flatnonzero(is_broken(pack(z, quantization)))) == [3]  # type: ignore[arg-type]


def test_values_that_tanh_cannot_make_are_refused() -> None:
    with pytest.raises(DataError, match=r"\[-1, 1\], got 1.5"):
        pack(np.array([[1.5]]), "int8")


@pytest.mark.parametrize("rows", [0, 5])
def test_arrow_round_trip(rows: int) -> None:
    import pyarrow as pa

    stored = pack(codes(rows), "int8")
    table = pa.table({"z": to_arrow(stored)})
    assert np.array_equal(from_arrow(table["z"]), stored)
