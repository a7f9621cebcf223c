"""RMS normalisation, alone and fused with the rounding of what a linear layer reads next.

``lanes`` is the number of float32 in a vector; a chunk is a row. The mean of squares is summed
in ``lanes`` float32 partial sums; relative error of an element below ``size / lanes * 2**-24``
in the worst case and about 2e-7 in practice.
"""

from __future__ import annotations

from math import sqrt

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


@njit(inline="always")
def largest_normal(x, weight, first, last, inverse, lanes):  # type: ignore[no-untyped-def]
    """Largest magnitude among elements ``first .. last - 1`` of a normalised row; NaN if one is."""
    whole = first + (last - first) // lanes * lanes
    top = splat(int32(0), "i32", lanes)
    for index in range(first, whole, lanes):
        top = maximum(top, magnitude(normal(x, weight, index, inverse, lanes)))
    result = reduce_max(top)
    for index in range(whole, last):
        result = max(result, reduce_max(magnitude(normal(x, weight, index, inverse, 1))))
    return float_of(result)


@njit(inline="always")
def round_normal(x, weight, first, last, inverse, factor, q, lanes):  # type: ignore[no-untyped-def]
    """Stores elements ``first .. last - 1`` of a normalised row as int8; returns their sum."""
    whole = first + (last - first) // lanes * lanes
    total = splat(int32(0), "i32", lanes)
    factors = splat(factor, "f32", lanes)
    for index in range(first, whole, lanes):
        codes = cast(round_even(normal(x, weight, index, inverse, lanes) * factors), "i32")
        total = total + codes
        store(q + index, cast(codes, "i8"))
    result = reduce_add(total)
    for index in range(whole, last):
        value = normal(x, weight, index, inverse, 1) * splat(factor, "f32", 1)
        code = cast(round_even(value), "i32")
        result += reduce_add(code)
        store(q + index, cast(code, "i8"))
    return result


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


@kernel(
    "rms_norm_row",
    "rows:i64[1] x:f32[rows, size; x_stride] x_stride weight:f32[size] size epsilon:f32[1]"
    " q:i8[rows, max(size, q_stride); q_stride] q_stride scale:f32[rows] sum:i32[rows]",
)
def rms_norm_row(lanes: int) -> Body:
    """``rms_norm`` over whole rows, then ``quantize_row``; the float result is not stored.

    A code may differ by one from the two ops in sequence where a value lies at a half.
    """

    def body(a: Arguments, chunk: int) -> None:
        x, weight, size = a.x + chunk * a.x_stride * 4, a.weight, a.size
        q = a.q + chunk * a.q_stride
        inverse = inverse_rms(x, size, float_at(a.epsilon, 0), lanes)
        factor = row_factor(largest_normal(x, weight, 0, size, inverse, lanes))
        total = round_normal(x, weight, 0, size, inverse, factor, q, lanes)
        fill_zero(q, size, a.q_stride)
        set_float(a.scale, chunk, float32(1) / factor)
        set_int(a.sum, chunk, total)

    return body


@kernel(
    "rms_norm_block",
    "rows:i64[1] x:f32[rows, size; x_stride] x_stride weight:f32[size] size epsilon:f32[1]"
    " q:i8[rows, max(size, q_stride); q_stride] q_stride scale:f32[rows, blocks]"
    " sum:i32[rows, blocks] blocks",
)
def rms_norm_block(block: int, lanes: int) -> Body:
    """``rms_norm`` over whole rows, then ``quantize_block``; the float result is not stored.

    A code may differ by one from the two ops in sequence where a value lies at a half.
    """

    def body(a: Arguments, chunk: int) -> None:
        x, weight, size = a.x + chunk * a.x_stride * 4, a.weight, a.size
        q, blocks = a.q + chunk * a.q_stride, a.blocks
        scales, sums = a.scale + chunk * blocks * 4, a.sum + chunk * blocks * 4
        inverse = inverse_rms(x, size, float_at(a.epsilon, 0), lanes)
        for index in range(blocks):
            first, last = min(size, index * block), min(size, (index + 1) * block)
            scale = largest_normal(x, weight, first, last, inverse, lanes) / float32(127)
            factor = block_factor(scale)
            total = round_normal(x, weight, first, last, inverse, factor, q, lanes)
            set_float(scales, index, scale)
            set_int(sums, index, total)
        fill_zero(q, size, a.q_stride)

    return body
