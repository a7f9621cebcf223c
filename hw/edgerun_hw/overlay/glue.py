"""What a glue command computes, in NumPy: the definition that the hardware is held to.

A row of a layer's values becomes int8 activations and their scale, in whole numbers
(``glue_numbers``). Both a norm and the scale of rounding divide a row by one number, so codes need
neither: with ``x`` for what comes in, ``c`` for the scale that it still lacks,

    h        = x                           without a gate
             = x * sigmoid(c * x) * up     SwiGLU (Shazeer 2020)
             = relu(x)**2 * up             ReLU squared (So et al. 2021; BitNet b1.58 2B4T)
             = x + c * up                  a residual sum, which is a result too
    v        = h * weight                  with a norm (Zhang and Sennrich 2019), else h
    code     = v * 127 / max |v|           to the nearest, halves away from zero
    scale    = max |v| * c**n / 127        without a norm; n is 2 or 3 with a gate, else 0
             = max |v| * c**n * sqrt(N) / 127 / sqrt(sum h**2 * c**(2 n) + N * epsilon)

The sigmoid is ``y / (1 + y)`` or ``1 / (1 + y)`` with ``y = 2**-a`` and ``a = |c * x| * log2(e)``
of 11 bits behind the point, by attention's table of powers of two and one of ``1 / (1 + y)``.
A row with an element that is no number, or becomes none, has the scale NaN and codes of zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgerun_hw.overlay.attention import SCORE_FRACTION, TABLE_BITS, exp2_table
from edgerun_hw.overlay.glue_numbers import (
    F32,
    FRACTION_BITS,
    I64,
    MANTISSA_BITS,
    NOTHING,
    ONE,
    POINT,
    Numbers,
    Scalar,
    add,
    cut,
    multiply,
)

I8: TypeAlias = NDArray[np.int8]

MAX_LENGTH = 8192  # elements of a row
CODE_LIMIT = Scalar.of(127.0)
SQUARE_BITS = 32  # of the square of a row's largest element
LOG2_E = float(np.log2(np.e))
# Of a row's real values: of the codes in steps of one, of the scale as a share.
CODE_ERROR, SCALE_ERROR = 0.04, 5e-4
# What SwiGLU adds, as a share of an element: tables, and the rounding of |c * x|.
GATE_ERROR, GATE_ERROR_PER_UNIT = 7e-4, 1.5e-4
LARGEST_GATE = 22.18  # the sigmoid of what is below its negative is zero


class Gate(IntEnum):
    """What a row goes through before the norm; the values are those of the command."""

    NONE = 0
    SWIGLU = 1
    RELU2 = 2
    RESIDUAL = 3


GAIN_POWERS = {Gate.NONE: 0, Gate.SWIGLU: 2, Gate.RELU2: 3, Gate.RESIDUAL: 0}


@dataclass(frozen=True)
class Constants:
    """The numbers of a command besides its rows.

    Attributes:
        gain: ``c``; 1 without a gate.
        slope: ``log2(e)``.
        factor: ``sqrt(N) / 127`` with a norm, else ``1 / 127``.
        floor: ``N * epsilon``.
    """

    gain: float
    slope: float
    factor: float
    floor: float

    @classmethod
    def make(cls, length: int, *, gain: float = 1.0, epsilon: float | None = None) -> Constants:
        """Those of rows of ``length`` elements, with a norm if there is an epsilon."""
        if epsilon is None:
            return cls(gain, LOG2_E, 1 / 127, 0.0)
        return cls(gain, LOG2_E, length**0.5 / 127, length * epsilon)


@cache
def reciprocal_table() -> I64:
    """``round(2**16 / (1 + (i + 1/2) / 2048))``."""
    steps = 1 << SCORE_FRACTION
    middle = 1 + (np.arange(steps) + 0.5) / steps
    table: I64 = np.rint((1 << MANTISSA_BITS) / middle).astype(np.int64)
    return table


def round_row(
    constants: Constants, gate: Gate, x: F32, up: F32 | None = None, weight: F32 | None = None
) -> tuple[I8, np.float32]:
    """Codes ``[N]`` of a row, and their scale.

    Args:
        constants: of the command.
        gate: which one.
        x: ``[N]``.
        up: ``[N]``, with a gate or a residual sum.
        weight: of the norm, ``[N]``; without one there is no norm.

    Raises:
        ValueError: the row is empty or longer than ``MAX_LENGTH``.
    """
    if not 1 <= len(x) <= MAX_LENGTH:
        raise ValueError(f"a row of {len(x)} elements; the unit takes 1 to {MAX_LENGTH}")
    gain, slope, factor, floor = (
        Scalar.of(value)
        for value in (constants.gain, constants.slope, constants.factor, constants.floor)
    )
    if gate is Gate.RESIDUAL and up is not None:
        h = residual_sum(x, up, gain)
    else:
        h = gated(gate, cut(x), up, gain * slope)
    v = h if weight is None else multiply(h, cut(weight))
    exponents = [s.exponent for s in (gain, slope, factor, floor)]
    if h.broken or v.broken or NOTHING in exponents:
        return np.zeros(len(x), np.int8), np.float32(np.nan)
    largest = _largest(v)
    power = _power(gain, GAIN_POWERS[gate])
    scale = largest * power * factor if power else largest * factor
    if weight is not None:
        squares = _sum_of_squares(h)
        scale /= ((squares * power * power if power else squares) + floor).square_root()
    return _codes(v, largest), scale.float32()


def gated(gate: Gate, x: Numbers, up: F32 | None, slope: Scalar) -> Numbers:
    """What the norm sees, ``[N]``.

    Args:
        gate: which one.
        x: the row.
        up: what it is multiplied by, with a gate.
        slope: of ``x`` in the sigmoid's exponent.
    """
    if up is None:
        return x
    if gate is Gate.SWIGLU:
        first = _sigmoids(x, slope)
    else:
        # What is no number is a factor still: of the product with the row itself.
        first = Numbers(
            np.zeros_like(x.negative),
            np.where(x.negative, 0, x.exponents),
            np.where(x.negative, 0, x.mantissas),
        )
    return multiply(multiply(first, x), cut(up))


def residual_sum(x: F32, y: F32, gain: Scalar) -> Numbers:
    """``x + gain * y``, ``[N]``."""
    ones = np.ones(len(x), np.int64)
    gains = Numbers(ones < 0, gain.exponent * ones, gain.mantissa * ones)
    return add(cut(x), multiply(gains, cut(y)))


def _sigmoids(x: Numbers, slope: Scalar) -> Numbers:
    ones = np.ones(len(x.mantissas), np.int64)
    # An exponent out of range is as good as the nearest one: the sigmoid is a half or saturated.
    exponent = min(max(slope.exponent, 0), NOTHING - 1) if slope.mantissa else 0
    slopes = Numbers(ones < 0, exponent * ones, (slope.mantissa if exponent else 0) * ones)
    scaled = multiply(x, slopes)
    # |scaled| with SCORE_FRACTION bits behind the point, to the nearest.
    shift = POINT - SCORE_FRACTION - scaled.exponents
    saturated = shift < 0
    doubled = (2 * scaled.mantissas) >> np.clip(shift, 0, MANTISSA_BITS + 1)
    steps = -((doubled + 1) >> 1)
    powers = exp2_table()[steps & ((1 << SCORE_FRACTION) - 1)]
    octaves = -(steps >> SCORE_FRACTION)
    places = np.minimum(
        powers >> np.minimum(octaves + TABLE_BITS - 1 - SCORE_FRACTION, TABLE_BITS),
        (1 << SCORE_FRACTION) - 1,
    )
    places = np.where(saturated, 0, places)
    reciprocals = Numbers(ones < 0, (ONE - 1) * ones, reciprocal_table()[places])
    zero = x.negative & saturated
    below = Numbers(
        ones < 0,
        np.where(x.negative, np.where(zero, 0, ONE - octaves), ONE),
        np.where(x.negative, np.where(zero, 0, powers), 1 << FRACTION_BITS),
    )
    return multiply(below, reciprocals)


def _largest(v: Numbers) -> Scalar:
    exponent = int(v.exponents.max())
    return Scalar(exponent, int(v.mantissas[v.exponents == exponent].max()))


def _power(gain: Scalar, power: int) -> Scalar | None:
    result = gain * gain if power else None
    return result * gain if result and power > 2 else result


def _sum_of_squares(h: Numbers) -> Scalar:
    top = int(h.exponents.max())
    relative = h.relative_to(top)
    squares = multiply(relative, relative)
    shift = np.minimum(ONE + 1 - squares.exponents, SQUARE_BITS)
    total = int(((squares.mantissas << (SQUARE_BITS - MANTISSA_BITS)) >> shift).sum())
    return Scalar.of_integer(total, POINT - SQUARE_BITS + 2 + 2 * (top - ONE))


def _codes(v: Numbers, largest: Scalar) -> I8:
    if not largest.mantissa:
        return np.zeros(len(v.mantissas), np.int8)
    factor = CODE_LIMIT / Scalar(ONE, largest.mantissa)
    ones = np.ones(len(v.mantissas), np.int64)
    factors = Numbers(ones < 0, factor.exponent * ones, factor.mantissa * ones)
    steps = multiply(v.relative_to(largest.exponent), factors)
    halves = steps.mantissas >> np.minimum(POINT - 1 - steps.exponents, MANTISSA_BITS)
    codes = (halves + 1) >> 1
    return np.where(steps.negative, -codes, codes).astype(np.int8)
