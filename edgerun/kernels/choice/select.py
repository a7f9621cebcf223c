"""Finding the largest of many numbers without sorting them.

Vectors have 16 lanes on every machine, so that sums are added up in one order everywhere.
"""

from __future__ import annotations

import numpy as np
from numba import float32, float64, int32, int64, njit

from edgerun.kernels.lang.masks import at_least, lowest_bit
from edgerun.kernels.lang.simd import (
    load,
    mask_bits,
    maximum,
    reduce_max,
    reinterpret,
    splat,
    store,
)
from edgerun.kernels.lang.word import float_at, set_float, set_int

LANES = 16
INFINITY_BITS = 0x7F800000
MIN_GROUPS = 256
LOWEST, NO_NUMBER = np.float32(-np.inf), np.float32(np.nan)


@njit
def largest(x, count):  # type: ignore[no-untyped-def]
    """The largest of ``count`` float32; NaN if one is NaN."""
    whole, highest, is_nan = count // LANES * LANES, LOWEST, False
    if whole > 0:
        top, bits = load(x, "f32", 16), splat(int32(0), "i32", 16)
        for index in range(0, whole, LANES):
            value = load(x + index * 4, "f32", 16)
            top = maximum(top, value)
            bits = maximum(bits, mask_bits(reinterpret(value, "i32"), 0x7FFFFFFF))
        highest, is_nan = reduce_max(top), reduce_max(bits) > INFINITY_BITS
    for index in range(whole, count):
        value1 = float_at(x, index)
        highest = max(highest, value1)
        is_nan = is_nan or value1 != value1
    return NO_NUMBER if is_nan else highest


@njit
def collect(x, count, bound, ids, values):  # type: ignore[no-untyped-def]
    """Those of ``count`` float32 that are at least ``bound``, in order; how many there are.

    Args:
        x: address of the numbers.
        count: how many.
        bound: float32.
        ids: address of int32: the place of each is written there.
        values: address of float32, which may be ``x``: each is written there.
    """
    taken, whole = int64(0), count // LANES * LANES
    bounds = splat(bound, "f32", 16)
    for index in range(0, whole, LANES):
        bits = at_least(load(x + index * 4, "f32", 16), bounds)
        while bits != 0:
            place = index + lowest_bit(bits)
            bits &= bits - 1
            set_int(ids, taken, int32(place))
            set_float(values, taken, float_at(x, place))
            taken += 1
    for place in range(whole, count):
        value = float_at(x, place)
        if value >= bound:
            set_int(ids, taken, int32(place))
            set_float(values, taken, value)
            taken += 1
    return taken


@njit
def _swap(x, left, right):  # type: ignore[no-untyped-def]
    value = float_at(x, left)
    set_float(x, left, float_at(x, right))
    set_float(x, right, value)


@njit
def _middle(keys, first, last):  # type: ignore[no-untyped-def]
    """The second of three of the keys."""
    a, b, c = float_at(keys, first), float_at(keys, (first + last) // 2), float_at(keys, last)
    return max(min(a, b), min(max(a, b), c))


@njit
def reaching(keys, weights, count, mass):  # type: ignore[no-untyped-def]
    """The smallest key among the fewest largest ones whose weights sum to ``mass``.

    Parts the keys by one of them, and goes on in the part where the sum is reached.

    Args:
        keys: address of float32, at least one and none NaN; their order changes.
        weights: address of float32, not negative, moved with the keys.
        count: how many.
        mass: float64; more than there is gives the smallest key.
    """
    first, last = int64(0), count - 1
    while True:
        pivot = _middle(keys, first, last)
        above, equal, place = float64(0), float64(0), first
        begin, end = first, last  # before begin all are larger than the pivot, behind end smaller
        while place <= end:
            key = float_at(keys, place)
            if key < pivot:
                _swap(keys, place, end)
                _swap(weights, place, end)
                end -= 1
            else:
                weight = float64(float_at(weights, place))
                if key > pivot:
                    above += weight
                    _swap(keys, place, begin)
                    _swap(weights, place, begin)
                    begin += 1
                else:
                    equal += weight
                place += 1
        if above >= mass and begin > first:
            last = begin - 1
        elif above + equal >= mass or end == last:
            return pivot
        else:
            mass -= above + equal
            first = end + 1


@njit
def kth_largest(x, count, rank, keys, ones):  # type: ignore[no-untyped-def]
    """The ``rank``-th largest of ``count`` float32.

    Numbers are dealt into groups; as many of these have a maximum that reaches the ``rank``-th
    largest maximum, so that no smaller number has to be looked at again.

    Args:
        x: address of the numbers, none of them NaN.
        count: how many.
        rank: 1 to ``count``.
        keys: address of float32 ``[count]`` to work in.
        ones: address of float32 ``[count]`` to work in.
    """
    groups, bound = int64(MIN_GROUPS), LOWEST
    while groups < 4 * rank:
        groups *= 2
    rows = count // groups
    if rows >= 2:
        for index in range(0, groups, LANES):
            top = load(x + index * 4, "f32", 16)
            for row in range(1, rows):
                top = maximum(top, load(x + (row * groups + index) * 4, "f32", 16))
            store(keys + index * 4, top)
        _fill(ones, groups)
        bound = reaching(keys, ones, groups, float64(rank))
    taken = collect(x, count, bound, ones, keys)
    _fill(ones, taken)
    return reaching(keys, ones, taken, float64(rank))


@njit
def _fill(ones, count):  # type: ignore[no-untyped-def]
    for index in range(count):
        set_float(ones, index, float32(1))
