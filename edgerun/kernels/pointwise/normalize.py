"""RMS normalisation, alone and fused with the rounding of what a linear layer reads next.

``lanes`` is the number of float32 in a vector; a chunk is a row. The mean of squares is summed
in ``lanes`` float32 partial sums; relative error of an element below ``size / lanes * 2**-24``
in the worst case and about 2e-7 in practice.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Any

from numba import float32, int32, njit

from edgerun.kernels.jit.declare import Arguments, Body, kernel
from edgerun.kernels.lang.simd import (
    cast,
    fma,
    load,
    maximum,
    reduce_add,
    reduce_max,
    round_even,
    splat,
    store,
)
from edgerun.kernels.lang.word import float_at, set_float, set_int
from edgerun.kernels.pointwise.quantize import (
    block_factor,
    fill_zero,
    float_of,
    magnitude,
    row_factor,
)

NORMED = "rows:i64[1] x:f32[rows, size; x_stride] x_stride size epsilon:f32[1]"
_CODES = "q:i8[rows, max(size, q_stride); q_stride] q_stride"
ROUNDED_ROW = f"{_CODES} scale:f32[rows] sum:i32[rows]"
ROUNDED_BLOCK = f"{_CODES} scale:f32[rows, blocks] sum:i32[rows, blocks] blocks"


@njit(inline="always")
def mean_of_squares(x, size, lanes):  # type: ignore[no-untyped-def]
    """``mean(x ** 2)`` of ``size`` float32."""
    whole = size // lanes * lanes
    total = splat(float32(0), "f32", lanes)
    for index in range(0, whole, lanes):
        v = load(x + index * 4, "f32", lanes)
        total = fma(v, v, total)
    result = reduce_add(total)
    for index in range(whole, size):
        result += float_at(x, index) * float_at(x, index)
    return result / float32(size)


@njit(inline="always")
def inverse_rms(x, size, epsilon, lanes):  # type: ignore[no-untyped-def]
    """``1 / sqrt(mean(x ** 2) + epsilon)`` of ``size`` float32."""
    return float32(1) / float32(sqrt(mean_of_squares(x, size, lanes) + epsilon))


@njit(inline="always")
def normal(x, weight, index, inverse, lanes):  # type: ignore[no-untyped-def]
    """Elements ``index ..`` of a normalised row."""
    scaled = load(x + index * 4, "f32", lanes) * splat(inverse, "f32", lanes)
    return scaled * load(weight + index * 4, "f32", lanes)


@kernel(
    "rms_norm",
    "rows:i64[1] x:f32[rows, groups, size; x_stride] x_stride weight:f32[weights, size]"
    " out:f32[rows, groups, size; out_stride] out_stride groups weights size epsilon:f32[1]",
)
def rms_norm(lanes: int) -> Body:
    """Normalises ``groups`` groups of ``size`` elements a row.

    ``weights`` is 1 where all groups have the same weights, and else as many as they are.
    ``epsilon`` is the address of a float32; ``out`` may be ``x``.
    """

    def body(a: Arguments, chunk: int) -> None:
        x, weight = a.x + chunk * a.x_stride * 4, a.weight
        out, size = a.out + chunk * a.out_stride * 4, a.size
        whole = size // lanes * lanes
        apart = size * 4 if a.weights > 1 else 0
        for _group in range(a.groups):
            inverse = inverse_rms(x, size, float_at(a.epsilon, 0), lanes)
            for index in range(0, whole, lanes):
                store(out + index * 4, normal(x, weight, index, inverse, lanes))
            for index in range(whole, size):
                store(out + index * 4, normal(x, weight, index, inverse, 1))
            x += size * 4
            out += size * 4
            weight += apart

    return body


@dataclass(frozen=True)
class Norm:
    """How a kernel normalises the rows that it rounds.

    Attributes:
        measure: ``(a, x, lanes)`` to the mean of a row and the inverse of its deviation.
        element: ``(a, x, index, mean, inverse, lanes)`` to elements ``index ..`` of what a row
            becomes, which is computed again wherever it is needed.
    """

    measure: Any
    element: Any


def row_rounding(norm: Norm, lanes: int) -> Body:
    """A kernel that normalises rows and rounds them as ``quantize_row`` does."""
    measure, largest, round_codes = norm.measure, _largest(norm), _round_codes(norm)

    def body(a: Arguments, chunk: int) -> None:
        x, size, q = a.x + chunk * a.x_stride * 4, a.size, a.q + chunk * a.q_stride
        mean, inverse = measure(a, x, lanes)
        factor = row_factor(largest(a, x, 0, size, mean, inverse, lanes))
        total = round_codes(a, x, 0, size, mean, inverse, factor, q, lanes)
        fill_zero(q, size, a.q_stride)
        set_float(a.scale, chunk, float32(1) / factor)
        set_int(a.sum, chunk, total)

    return body


def block_rounding(norm: Norm, block: int, lanes: int) -> Body:
    """A kernel that normalises rows and rounds them as ``quantize_block`` does."""
    measure, largest, round_codes = norm.measure, _largest(norm), _round_codes(norm)

    def body(a: Arguments, chunk: int) -> None:
        x, size, q = a.x + chunk * a.x_stride * 4, a.size, a.q + chunk * a.q_stride
        blocks = a.blocks
        scales, sums = a.scale + chunk * blocks * 4, a.sum + chunk * blocks * 4
        mean, inverse = measure(a, x, lanes)
        for index in range(blocks):
            first, last = min(size, index * block), min(size, (index + 1) * block)
            scale = largest(a, x, first, last, mean, inverse, lanes) / float32(127)
            factor = block_factor(scale)
            total = round_codes(a, x, first, last, mean, inverse, factor, q, lanes)
            set_float(scales, index, scale)
            set_int(sums, index, total)
        fill_zero(q, size, a.q_stride)

    return body


def _largest(norm: Norm) -> Any:
    """The function for the largest magnitude of elements ``first .. last - 1``; NaN if one is."""
    element = norm.element

    @njit(inline="always")
    def largest(a, x, first, last, mean, inverse, lanes):  # type: ignore[no-untyped-def]
        whole = first + (last - first) // lanes * lanes
        top = splat(int32(0), "i32", lanes)
        for index in range(first, whole, lanes):
            top = maximum(top, magnitude(element(a, x, index, mean, inverse, lanes)))
        result = reduce_max(top)
        for index in range(whole, last):
            result = max(result, reduce_max(magnitude(element(a, x, index, mean, inverse, 1))))
        return float_of(result)

    return largest


def _round_codes(norm: Norm) -> Any:
    """The function that stores elements ``first .. last - 1`` as int8 and returns their sum."""
    element = norm.element

    @njit(inline="always")
    def round_codes(a, x, first, last, mean, inverse, factor, q, lanes):  # type: ignore[no-untyped-def]
        whole = first + (last - first) // lanes * lanes
        total = splat(int32(0), "i32", lanes)
        factors = splat(factor, "f32", lanes)
        for index in range(first, whole, lanes):
            value = element(a, x, index, mean, inverse, lanes)
            codes = cast(round_even(value * factors), "i32")
            total = total + codes
            store(q + index, cast(codes, "i8"))
        result = reduce_add(total)
        for index in range(whole, last):
            value = element(a, x, index, mean, inverse, 1) * splat(factor, "f32", 1)
            code = cast(round_even(value), "i32")
            result += reduce_add(code)
            store(q + index, cast(code, "i8"))
        return result

    return round_codes


@njit(inline="always")
def _measure(a, x, lanes):  # type: ignore[no-untyped-def]
    return float32(0), inverse_rms(x, a.size, float_at(a.epsilon, 0), lanes)


@njit(inline="always")
def _element(a, x, index, mean, inverse, lanes):  # type: ignore[no-untyped-def]
    return normal(x, a.weight, index, inverse, lanes)


RMS = Norm(_measure, _element)


@kernel("rms_norm_row", f"{NORMED} weight:f32[size] {ROUNDED_ROW}")
def rms_norm_row(lanes: int) -> Body:
    """``rms_norm`` over whole rows, then ``quantize_row``; the float result is not stored.

    A code may differ by one from the two ops in sequence where a value lies at a half.
    """
    return row_rounding(RMS, lanes)


@kernel("rms_norm_block", f"{NORMED} weight:f32[size] {ROUNDED_BLOCK}")
def rms_norm_block(block: int, lanes: int) -> Body:
    """``rms_norm`` over whole rows, then ``quantize_block``; the float result is not stored.

    A code may differ by one from the two ops in sequence where a value lies at a half.
    """
    return block_rounding(RMS, block, lanes)
