"""The numbers of the glue unit: float32 with 15 bits of fraction, all rounded towards zero.

A number is a sign, an exponent and a mantissa of 16 bits whose top bit is set: ``mantissa *
2**(exponent - 142)``. Exponents of elements are those of float32: 1 to 254, and 255 says that there
is no number (infinity, NaN, or a product too large). What is below float32's normal range is zero.
Scalars, which are not negative, have exponents of 12 bits, so that none is out of range.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

F32: TypeAlias = NDArray[np.float32]
I64: TypeAlias = NDArray[np.int64]

MANTISSA_BITS = 16
FRACTION_BITS = MANTISSA_BITS - 1
ONE = 127  # the exponent of 1
NOTHING = 255  # the exponent of what is no number
POINT = ONE + FRACTION_BITS  # a mantissa stands for itself times 2**(exponent - POINT)
CUT_BITS = 23 - FRACTION_BITS  # of float32's fraction, which are dropped
GUARD_BITS = 3  # of the smaller summand, behind the larger one's last
NO_NUMBER_WORD = 0x7FC00000  # float32's


@dataclass(frozen=True)
class Numbers:
    """Elements.

    Attributes:
        negative: bool.
        exponents: 0 of a zero, 1 to 254, or ``NOTHING``.
        mantissas: 0 of a zero, else 32768 to 65535.
    """

    negative: NDArray[np.bool_]
    exponents: I64
    mantissas: I64

    def __getitem__(self, chosen: slice | NDArray[np.bool_]) -> Numbers:
        return Numbers(self.negative[chosen], self.exponents[chosen], self.mantissas[chosen])

    @property
    def broken(self) -> bool:
        """Whether one of them is no number."""
        return bool((self.exponents == NOTHING).any())

    def relative_to(self, top: int) -> Numbers:
        """Divided by a power of two so that the exponent ``top`` becomes that of 1."""
        return _in_range(self.negative, self.exponents - top + ONE, self.mantissas)

    def words(self) -> NDArray[np.uint32]:
        """The float32 that they are, as the unit writes them: one zero, and one NaN."""
        words = self.exponents << 23 | (self.mantissas & ((1 << FRACTION_BITS) - 1)) << CUT_BITS
        words = np.where(self.negative, words | 1 << 31, words)
        words = np.where(self.exponents == NOTHING, NO_NUMBER_WORD, words)
        return np.where(self.exponents == 0, 0, words).astype(np.uint32)

    def floats(self) -> F32:
        """The float32 that they are; NaN where there is no number."""
        sizes = np.ldexp(self.mantissas.astype(np.float64), (self.exponents - POINT).astype(int))
        sizes = np.where(self.exponents == NOTHING, np.nan, sizes)
        return np.where(self.negative, -sizes, sizes).astype(np.float32)


def cut(x: F32) -> Numbers:
    """Float32 without the lower bits of its fraction."""
    words = np.ascontiguousarray(x, np.float32).view(np.uint32).astype(np.int64)
    mantissas = 1 << FRACTION_BITS | (words >> CUT_BITS) & ((1 << FRACTION_BITS) - 1)
    return _in_range(words >> 31 != 0, words >> 23 & 255, mantissas)


def multiply(a: Numbers, b: Numbers) -> Numbers:
    """The products; no number where a factor is none, or the product too large."""
    products = a.mantissas * b.mantissas
    high = products >> (2 * MANTISSA_BITS - 1)
    exponents = a.exponents + b.exponents - ONE + high
    exponents = np.where(products > 0, exponents, 0)
    exponents = np.where((a.exponents == NOTHING) | (b.exponents == NOTHING), NOTHING, exponents)
    return _in_range(a.negative ^ b.negative, exponents, products >> (FRACTION_BITS + high))


def add(a: Numbers, b: Numbers) -> Numbers:
    """The sums; no number where a summand is none, or the sum too large.

    What the smaller one has beyond ``GUARD_BITS`` places behind the larger one's last is dropped
    first, and of the sum what does not fit.
    """
    left, right = (number.exponents << MANTISSA_BITS | number.mantissas for number in (a, b))
    swap = right > left
    negative = np.where(swap, b.negative, a.negative)
    exponents = np.where(swap, b.exponents, a.exponents)
    large = np.where(swap, b.mantissas, a.mantissas) << GUARD_BITS
    small = np.where(swap, a.mantissas, b.mantissas) << GUARD_BITS
    apart = exponents - np.where(swap, a.exponents, b.exponents)
    moved = small >> np.minimum(apart, MANTISSA_BITS + GUARD_BITS)
    totals = large + np.where(a.negative == b.negative, moved, -moved)
    bits = np.frexp(totals.astype(np.float64))[1].astype(np.int64)
    most = MANTISSA_BITS + GUARD_BITS + 1
    sums = np.where(totals > 0, exponents + bits - most + 1, 0)
    sums = np.where(exponents == NOTHING, NOTHING, sums)
    return _in_range(negative, sums, totals << (most - bits) >> (GUARD_BITS + 1))


def _in_range(negative: NDArray[np.bool_], exponents: I64, mantissas: I64) -> Numbers:
    exponents = np.clip(exponents, 0, NOTHING)
    zero = exponents == 0
    return Numbers(negative & ~zero, exponents, np.where(zero, 0, mantissas))


@dataclass(frozen=True)
class Scalar:
    """A number that is not negative.

    Attributes:
        exponent: as of ``Numbers``, without bounds; any for a zero.
        mantissa: 0, or 32768 to 65535.
    """

    exponent: int
    mantissa: int

    @classmethod
    def of(cls, value: float) -> Scalar:
        """The magnitude of a float32."""
        number = cut(np.array([value], np.float32))
        return cls(int(number.exponents[0]), int(number.mantissas[0]))

    @classmethod
    def of_integer(cls, value: int, exponent: int) -> Scalar:
        """``value * 2**(exponent - POINT)`` of an integer that is 0 or has 16 bits or more."""
        dropped = max(value.bit_length() - MANTISSA_BITS, 0)
        return cls(exponent + dropped, value >> dropped)

    def __mul__(self, other: Scalar) -> Scalar:
        product = self.mantissa * other.mantissa
        high = product >> (2 * MANTISSA_BITS - 1)
        exponent = self.exponent + other.exponent - ONE + high
        return Scalar(exponent, product >> (FRACTION_BITS + high))

    def __truediv__(self, other: Scalar) -> Scalar:
        if not self.mantissa:
            return self
        quotient = (self.mantissa << MANTISSA_BITS) // other.mantissa
        high = quotient >> MANTISSA_BITS
        return Scalar(self.exponent - other.exponent + ONE - 1 + high, quotient >> high)

    def __add__(self, other: Scalar) -> Scalar:
        if not self.mantissa or not other.mantissa:
            return self if self.mantissa else other
        large, small = (self, other) if self.exponent >= other.exponent else (other, self)
        total = large.mantissa + (small.mantissa >> (large.exponent - small.exponent))
        return Scalar.of_integer(total, large.exponent)

    def square_root(self) -> Scalar:
        """The square root."""
        power = self.exponent - POINT - MANTISSA_BITS
        odd = power & 1
        root = isqrt(self.mantissa << (MANTISSA_BITS - odd))
        return Scalar(POINT + (power + odd) // 2, root)

    def float32(self) -> np.float32:
        """The float32 that it is; zero below the normal range, NaN above it."""
        if not self.mantissa or self.exponent < 1:
            return np.float32(0)
        if self.exponent >= NOTHING:
            return np.float32(np.nan)
        return np.float32(np.ldexp(float(self.mantissa), self.exponent - POINT))
