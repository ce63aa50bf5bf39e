"""How representations lie on disk: tanh codes in [-1, 1] as int8 (or as they are, float32).

The encoder and its Matryoshka loss live with the model (arXiv 2605.29280, compression stage);
here is only the number format. Suffixes: N vectors, d code width.
"""

from __future__ import annotations

from typing import Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.run.errors import DataError

Quantization = Literal["float32", "int8"]
SCALE: Final = 127  # symmetric: -1 -> -127, 0 -> 0, 1 -> 127; the code -128 is never written


def pack(z_Nd: npt.NDArray[np.floating], quantization: Quantization) -> npt.NDArray[np.generic]:
    """Codes as stored: int8 (N, d) rounded to 1/127, or float32 (N, d) unchanged.

    Not-a-number becomes -128 in int8, which `is_broken` finds; values outside [-1, 1] are
    refused with `DataError`, because tanh cannot make them.
    """
    largest = float(np.nanmax(np.abs(z_Nd), initial=0.0))
    if largest > 1.0 + 1e-6:
        raise DataError(
            f"representation codes must lie in [-1, 1], got {largest:.4g}; "
            "write the compressor's tanh output"
        )
    if quantization == "float32":
        return z_Nd.astype(np.float32)
    scaled_Nd = np.rint(np.clip(z_Nd.astype(np.float64), -1.0, 1.0) * SCALE)
    return np.where(np.isnan(scaled_Nd), -128.0, scaled_Nd).astype(np.int8)


def unpack(z_Nd: npt.NDArray[np.generic]) -> npt.NDArray[np.float32]:
    """Stored codes as float32 in [-1, 1]; `pack(unpack(z))` gives back the same bytes."""
    if z_Nd.dtype == np.int8:
        return z_Nd.astype(np.float32) / np.float32(SCALE)
    return z_Nd.astype(np.float32)


def is_broken(z_Nd: npt.NDArray[np.generic]) -> npt.NDArray[np.bool_]:
    """True (N,) where a stored vector holds a code that no encoder writes."""
    if z_Nd.dtype == np.int8:
        return (z_Nd == -128).any(axis=1)
    return (~np.isfinite(z_Nd) | (np.abs(z_Nd) > 1.0 + 1e-6)).any(axis=1)


def storage_dtype(quantization: Quantization) -> np.dtype[np.generic]:
    """Numpy type of one stored code."""
    return np.dtype(np.int8) if quantization == "int8" else np.dtype(np.float32)


def to_arrow(z_Nd: npt.NDArray[np.generic]) -> pa.FixedSizeListArray:
    """Stored codes (N, d) as an Arrow fixed-size list column."""
    return pa.FixedSizeListArray.from_arrays(pa.array(z_Nd.reshape(-1)), z_Nd.shape[1])


def from_arrow(column: pa.ChunkedArray) -> npt.NDArray[np.generic]:
    """The inverse of `to_arrow`: a writable array (N, d) of the column's own type."""
    width = column.type.list_size
    chunks = [chunk.flatten().to_numpy(zero_copy_only=False) for chunk in column.chunks]
    empty = np.zeros(0, dtype=column.type.value_type.to_pandas_dtype())
    return np.concatenate([empty, *chunks]).reshape(-1, width)
