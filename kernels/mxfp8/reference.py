"""MXFP8 one number at a time, in exact fractions (OCP Microscaling Formats v1.0, section 5).

An element is E4M3: sign, 4 exponent bits with bias 7, 3 mantissa bits; the code with all of them
set is NaN and there are no infinities; the largest number is 448. A block of elements shares one
E8M0 scale: a power of two with bias 127, whose code 255 is NaN.
"""

from __future__ import annotations

import math
from fractions import Fraction

BLOCK = 32
LARGEST = Fraction(448)
SCALE_BIAS = 127
NAN_CODE, NAN_SCALE = 0x7F, 0xFF


def element(code: int) -> Fraction | None:
    """The number that an E4M3 code stands for; None for NaN."""
    if code & 0x7F == NAN_CODE:
        return None
    exponent, mantissa = (code >> 3) & 0xF, code & 0x7
    if exponent == 0:
        size = Fraction(mantissa, 8) * Fraction(2) ** -6
    else:
        size = (1 + Fraction(mantissa, 8)) * Fraction(2) ** (exponent - 7)
    return -size if code & 0x80 else size


def scale(code: int) -> Fraction | None:
    """The power of two that an E8M0 code stands for; None for NaN."""
    return None if code == NAN_SCALE else Fraction(2) ** (code - SCALE_BIAS)


def encode(number: Fraction, negative: bool) -> int:
    """The nearest E4M3 code, to the even one halfway, and the largest number beyond the range."""
    size = min(abs(number), LARGEST)

    def distance(code: int) -> tuple[Fraction, int]:
        value = element(code)
        return abs(size - (value or Fraction(0))), code & 1

    nearest = min(range(NAN_CODE), key=distance)
    return nearest | 0x80 if negative else nearest


def scale_code(largest: Fraction) -> int:
    """The smallest power of two, as a code, that brings `largest` within 448: ceil(log2(./448))."""
    code = 0
    while code < NAN_SCALE - 1 and largest > LARGEST * Fraction(2) ** (code - SCALE_BIAS):
        code += 1
    return code


def quantize_block(numbers: list[float]) -> tuple[list[int], int]:
    """Codes of a block and its scale's; NaN and infinities become NaN and do not set the scale."""
    finite = [Fraction(x) for x in numbers if math.isfinite(x)]
    shared = scale_code(max((abs(x) for x in finite), default=Fraction(0)))
    power = Fraction(2) ** (shared - SCALE_BIAS)
    codes = []
    for x in numbers:
        negative = math.copysign(1.0, x) < 0
        if math.isfinite(x):
            codes.append(encode(Fraction(x) / power, negative))
        else:
            codes.append(NAN_CODE | (0x80 if negative else 0))
    return codes, shared


def dequantize_block(codes: list[int], shared: int) -> list[float]:
    """Numbers of a block; what a float64 cannot miss, exactly."""
    power = scale(shared)
    values = [element(code) for code in codes]
    return [
        math.nan if v is None or power is None else math.copysign(float(v * power), _sign(c))
        for v, c in zip(values, codes, strict=True)
    ]


def _sign(code: int) -> float:
    return -1.0 if code & 0x80 else 1.0
