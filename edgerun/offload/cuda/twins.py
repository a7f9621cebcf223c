"""The operations of ``instructions.py`` in plain Python, bit for bit, for Numba's simulator."""

from __future__ import annotations

import math
from operator import mul
from struct import Struct
from typing import Any

import numpy as np

WORD, BYTES = Struct("<i"), Struct("<4b")


def add(a: Any, b: Any) -> np.float32:
    """``a + b``."""
    return np.float32(a) + np.float32(b)


def multiply(a: Any, b: Any) -> np.float32:
    """``a * b``."""
    return np.float32(a) * np.float32(b)


def divide(a: Any, b: Any) -> np.float32:
    """``a / b``."""
    return np.float32(a) / np.float32(b)


def fma(a: Any, b: Any, c: Any) -> np.float32:
    """``a * b + c``, rounded once.

    The product is exact in double precision. Their sum is rounded to odd, so that rounding it again
    gives what rounding once would (Boldo and Melquiond 2008).
    """
    product, addend = float(a) * float(b), float(c)
    total = product + addend
    moved = total - product
    error = (product - (total - moved)) + (addend - moved)
    if error and math.isfinite(error) and not np.float64(total).view(np.int64) & 1:
        total = math.nextafter(total, math.copysign(math.inf, error))
    return np.float32(total)


def round_even(x: Any) -> np.float32:
    """The nearest integer; of two the even one."""
    return np.float32(np.rint(x))


def float_of_bits(bits: Any) -> np.float32:
    """The float32 that an int32 has the bits of."""
    return np.float32(np.int32(bits).view(np.float32))


def dot4(a: Any, b: Any, c: Any) -> np.int32:
    """``c`` plus the products of four signed bytes in each of two words."""
    left, right = BYTES.unpack(WORD.pack(a)), BYTES.unpack(WORD.pack(b))
    return np.int32(c + sum(map(mul, left, right)))
