"""Representations in four bits a code, two codes a byte, with a codebook of 16 values beside them.

`int4` has fixed values, round(8z) in [-8, 7]; `kmeans4` fits its 16 to the vectors at hand. A value
of the codebook packs to its own place, so that packing what was unpacked gives the same bytes.
Suffixes: N vectors, d code width, Y bytes of a vector, C codebook values.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.loopfm.compress import from_arrow, to_arrow
from pipeline.run.errors import DataError

Nibbles = Literal["int4", "kmeans4"]
Floats = npt.NDArray[np.float32]
INT4: Final[Floats] = (np.arange(-8, 8) / 8).astype(np.float32)
FIT_CODES, ROUNDS = 100_000, 100
CODES_KEY: Final = b"codes"


@dataclass(frozen=True, kw_only=True)
class Packed:
    """`bytes_NY`: code 2y in the low half of byte y; `values_C`: what the 16 codes stand for."""

    bytes_NY: npt.NDArray[np.uint8]
    values_C: Floats
    width: int

    def unpack(self) -> Floats:
        """Codes as float32 [N, d]."""
        both = np.stack([self.bytes_NY & 15, self.bytes_NY >> 4], axis=2)
        return self.values_C[both.reshape(len(both), 2 * both.shape[1])[:, : self.width]]

    def to_arrow(self) -> tuple[pa.Field, pa.Array]:
        """A column `z` whose field carries codebook and width."""
        column = to_arrow(self.bytes_NY)
        known = {"values": self.values_C.astype(float).tolist(), "width": self.width}
        return pa.field("z", column.type, metadata={CODES_KEY: json.dumps(known)}), column

    @staticmethod
    def of_arrow(field: pa.Field, column: pa.ChunkedArray) -> Packed:
        """The inverse of `to_arrow`."""
        known = json.loads(field.metadata[CODES_KEY])
        return Packed(
            bytes_NY=from_arrow(column).astype(np.uint8),
            values_C=np.array(known["values"], dtype=np.float32),
            width=known["width"],
        )


def is_packed(field: pa.Field) -> bool:
    """Whether a column of vectors has two codes a byte."""
    return CODES_KEY in (field.metadata or {})


def codebook(z_Nd: Floats, kind: Nibbles) -> Floats:
    """The 16 values of a format, ascending; k-means starts at quantiles of evenly spaced vectors.

    Whole vectors: a step through single codes that the width divides would see a few places only.
    """
    if kind == "int4" or not z_Nd.size:
        return INT4
    codes = z_Nd[:: max(1, z_Nd.size // FIT_CODES)].reshape(-1).astype(np.float64)
    values_C = np.quantile(codes, (np.arange(16) + 0.5) / 16)
    for _ in range(ROUNDS):
        place = _nearest(codes, values_C)
        count_C = np.bincount(place, minlength=16)
        sum_C = np.bincount(place, weights=codes, minlength=16)
        values_C = np.where(count_C > 0, sum_C / np.maximum(count_C, 1), values_C)
        values_C.sort()
    return values_C.astype(np.float32)


def pack_nibbles(z_Nd: Floats, values_C: Floats) -> Packed:
    """The nearest codes; `DataError` where a vector holds NaN, for which there is no code."""
    broken = np.flatnonzero(~np.isfinite(z_Nd).all(axis=1))
    if len(broken):
        raise DataError(
            f"{len(broken)} of {len(z_Nd)} vectors hold values that are not finite, first at row "
            f"{int(broken[0])}; four bits have no code for them: train the model again"
        )
    width = z_Nd.shape[1]
    place_Nd = _nearest(z_Nd, values_C.astype(np.float64)).astype(np.uint8)
    even_Nd = np.pad(place_Nd, ((0, 0), (0, width % 2)))
    bytes_NY = even_Nd[:, ::2] | (even_Nd[:, 1::2] << 4)
    return Packed(bytes_NY=bytes_NY.astype(np.uint8), values_C=values_C, width=width)


def _nearest(codes: npt.NDArray[np.floating], values_C: npt.NDArray[np.float64]) -> np.ndarray:
    """Place of the nearest of ascending values."""
    return np.searchsorted((values_C[1:] + values_C[:-1]) / 2, codes)
