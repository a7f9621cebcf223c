"""The glue unit's definition as native code: for checks, and for when the overlay is gone.

``round_row`` is ``overlay.glue.round_row`` to the bit. An element is a word as the unit has them: a
sign, 8 bits of exponent, 15 of fraction; a scalar is an exponent and a mantissa.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from edgerun_hw.overlay.attention import SCORE_FRACTION, TABLE_BITS, exp2_table
from edgerun_hw.overlay.glue import SQUARE_BITS, Gate, reciprocal_table
from edgerun_hw.overlay.glue_numbers import (
    CUT_BITS,
    FRACTION_BITS,
    GUARD_BITS,
    MANTISSA_BITS,
    NO_NUMBER_WORD,
    NOTHING,
    ONE,
    POINT,
)
from edgerun_hw.overlay.packing import LookupMode
from edgerun_hw.overlay.register_map import BEAT_BYTES

SIGN = 1 << (8 + FRACTION_BITS)
HIDDEN = 1 << FRACTION_BITS
NONE = NOTHING << FRACTION_BITS
UNIT = ONE << FRACTION_BITS  # the number 1
STEPS = 1 << SCORE_FRACTION
TILE = LookupMode.TERNARY.activations_per_tile
SWIGLU, RELU2, RESIDUAL = int(Gate.SWIGLU), int(Gate.RELU2), int(Gate.RESIDUAL)
EXP2, RECIPROCAL = exp2_table(), reciprocal_table()
CODE_LIMIT = (ONE + 6, 127 << (MANTISSA_BITS - 7))


@njit
def _exponent(number: int) -> Any:
    return number >> FRACTION_BITS & NOTHING


@njit
def _mantissa(number: int) -> Any:
    return HIDDEN | number & (HIDDEN - 1) if _exponent(number) else 0


@njit
def _number(sign: int, exponent: int, mantissa: int) -> Any:
    """A number in range; what is too large is none."""
    if exponent < 1:
        return 0
    if exponent >= NOTHING:
        return sign | NONE
    return sign | exponent << FRACTION_BITS | mantissa & (HIDDEN - 1)


@njit
def _cut(word: int) -> Any:
    """A float32's word without the lower bits of its fraction."""
    number = np.int64(word) >> CUT_BITS
    return number if _exponent(number) else 0


@njit
def _multiply(a: int, b: int) -> Any:
    sign = (a ^ b) & SIGN
    left, right = _exponent(a), _exponent(b)
    if left == NOTHING or right == NOTHING:
        return sign | NONE
    if left == 0 or right == 0:
        return 0
    product = _mantissa(a) * _mantissa(b)
    high = product >> (2 * MANTISSA_BITS - 1)
    return _number(sign, left + right - ONE + high, product >> (FRACTION_BITS + high))


@njit
def _add(a: int, b: int) -> Any:
    if b & (SIGN - 1) > a & (SIGN - 1):
        a, b = b, a
    exponent = _exponent(a)
    if exponent == NOTHING:
        return a & SIGN | NONE
    apart = min(exponent - _exponent(b), MANTISSA_BITS + GUARD_BITS)
    moved = _mantissa(b) << GUARD_BITS >> apart
    total = (_mantissa(a) << GUARD_BITS) + (-moved if (a ^ b) & SIGN else moved)
    if total == 0:
        return 0
    places = 0
    while total >> (MANTISSA_BITS + GUARD_BITS - places) == 0:
        places += 1
    return _number(a & SIGN, exponent + 1 - places, total << places >> (GUARD_BITS + 1))


@njit
def _sigmoid(x: int, slope: int) -> Any:
    scaled = _multiply(x, slope)
    shift = POINT - SCORE_FRACTION - _exponent(scaled)
    saturated, negative = shift < 0, x & SIGN != 0
    doubled = 2 * _mantissa(scaled) >> min(max(shift, 0), MANTISSA_BITS + 1)
    steps = -((doubled + 1) >> 1)
    power, octaves = EXP2[steps & (STEPS - 1)], -(steps >> SCORE_FRACTION)
    place = min(power >> min(octaves + TABLE_BITS - 1 - SCORE_FRACTION, TABLE_BITS), STEPS - 1)
    reciprocal = RECIPROCAL[0 if saturated else place]
    below = UNIT
    if negative:
        below = 0 if saturated else _number(0, ONE - octaves, power)
    return _multiply(below, _number(0, ONE - 1, reciprocal))


@njit
def _gated(gate: int, x: int, up: int, gain: int, slope: int) -> Any:
    if gate == 0:
        return x
    if gate == RESIDUAL:
        return _add(x, _multiply(gain, up))
    first = _sigmoid(x, slope) if gate == SWIGLU else 0 if x & SIGN else x
    return _multiply(_multiply(first, x), up)


# ---- scalars


@njit
def _scalar(number: int) -> Any:
    return _exponent(number), _mantissa(number)


@njit
def _times(a: Any, b: Any) -> Any:
    product = a[1] * b[1]
    high = product >> (2 * MANTISSA_BITS - 1)
    return a[0] + b[0] - ONE + high, product >> (FRACTION_BITS + high)


@njit
def _over(a: Any, b: Any) -> Any:
    if a[1] == 0 or b[1] == 0:
        return a[0], a[1] * 0
    quotient = (a[1] << MANTISSA_BITS) // b[1]
    high = quotient >> MANTISSA_BITS
    return a[0] - b[0] + ONE - 1 + high, quotient >> high


@njit
def _of_integer(value: int, exponent: int) -> Any:
    while value >> MANTISSA_BITS:
        value, exponent = value >> 1, exponent + 1
    return exponent, value


@njit
def _plus(a: Any, b: Any) -> Any:
    if a[1] == 0:
        return b
    if b[1] == 0:
        return a
    large, small = (a, b) if a[0] >= b[0] else (b, a)
    apart = large[0] - small[0]
    return _of_integer(large[1] + (small[1] >> min(apart, MANTISSA_BITS + 1)), large[0])


@njit
def _square_root(a: Any) -> Any:
    power = a[0] - POINT - MANTISSA_BITS
    odd = power & 1
    radicand = a[1] << (MANTISSA_BITS - odd)
    root = np.int64(np.sqrt(np.float64(radicand)))  # 32 bits: exact but for the last step
    while root * root > radicand:
        root -= 1
    while (root + 1) * (root + 1) <= radicand:
        root += 1
    return POINT + (power + odd) // 2, root


@njit
def _float32(a: Any) -> Any:
    """The float32's word."""
    if a[1] == 0 or a[0] < 1:
        return 0
    if a[0] >= NOTHING:
        return NO_NUMBER_WORD
    return (a[0] << FRACTION_BITS | a[1] & (HIDDEN - 1)) << CUT_BITS


@njit
def _relative(number: int, top: int) -> Any:
    if _exponent(number) == 0:
        return 0
    return _number(number & SIGN, _exponent(number) - top + ONE, number)


@njit
def _word(number: int) -> Any:
    """The float32's word of an element."""
    if _exponent(number) == NOTHING:
        return NO_NUMBER_WORD
    return number << CUT_BITS


@njit
def _top(numbers: Any) -> Any:
    """The largest magnitude; ``NONE`` or more if one is no number."""
    largest = 0
    for number in numbers:
        largest = max(largest, number & (SIGN - 1))
    return largest


@njit
def _squares(numbers: Any, top: int) -> Any:
    total = np.int64(0)
    for number in numbers:
        share = _relative(number, top)
        square = _multiply(share, share)
        shift = min(ONE + 1 - _exponent(square), SQUARE_BITS)
        total += _mantissa(square) << (SQUARE_BITS - MANTISSA_BITS) >> shift
    return _of_integer(total, POINT - SQUARE_BITS + 2 + 2 * (top - ONE))


@njit
def _round(numbers: Any, largest: int, codes: Any) -> None:
    top, mantissa = _scalar(largest)
    if mantissa == 0:
        return
    factor = _over(CODE_LIMIT, (ONE, mantissa))
    by = _number(0, factor[0], factor[1])
    for place in range(len(numbers)):
        step = _multiply(_relative(numbers[place], top), by)
        shift = min(POINT - 1 - _exponent(step), MANTISSA_BITS)
        code = ((_mantissa(step) >> shift) + 1) >> 1
        codes[place // TILE * BEAT_BYTES + place % TILE] = -code if step & SIGN else code


@njit
def round_row(
    gate: int, norm: bool, constants: Any, x: Any, up: Any, weight: Any, sums: Any, codes: Any
) -> Any:
    """Codes of a row, and their scale.

    Args:
        gate: a ``Gate``.
        norm: whether there is a norm.
        constants: words of gain, slope, factor, floor.
        x: words, uint32 ``[N]``.
        up: likewise, with a gate or a sum.
        weight: likewise, with a norm.
        sums: uint32 ``[N]``, written by a residual sum.
        codes: int8, the engine's tiles.

    Returns:
        the word of the scale.
    """
    count = len(x)
    gain, slope, factor, floor = (
        _cut(constants[0]) & (SIGN - 1),
        _cut(constants[1]) & (SIGN - 1),
        _cut(constants[2]) & (SIGN - 1),
        _cut(constants[3]) & (SIGN - 1),
    )
    steep = _times(_scalar(gain), _scalar(slope))
    tilt = _number(0, min(max(steep[0], 0), NOTHING - 1), steep[1]) if steep[1] else 0
    rows = np.zeros(count, np.int64)
    for place in range(count):
        second = _cut(up[place]) if gate else 0
        rows[place] = _gated(gate, _cut(x[place]), second, gain, tilt)
        if gate == RESIDUAL:
            sums[place] = _word(rows[place])
    codes[:] = 0
    before, largest, squares = _top(rows), 0, (0, 0)
    if before < NONE and norm:
        squares = _squares(rows, _exponent(before))
        for place in range(count):
            rows[place] = _multiply(rows[place], _cut(weight[place]))
    largest = _top(rows)
    if max(max(before, largest), max(max(gain, slope), max(factor, floor))) >= NONE:
        return NO_NUMBER_WORD
    scale, power = _scalar(largest), (ONE, HIDDEN)
    if gate in (SWIGLU, RELU2):
        power = _times(_scalar(gain), _scalar(gain))
        if gate == RELU2:
            power = _times(power, _scalar(gain))
        scale = _times(scale, power)
    scale = _times(scale, _scalar(factor))
    if norm:
        if gate in (SWIGLU, RELU2):
            squares = _times(_times(squares, power), power)
        scale = _over(scale, _square_root(_plus(squares, _scalar(floor))))
    _round(rows, largest, codes)
    return _float32(scale)
