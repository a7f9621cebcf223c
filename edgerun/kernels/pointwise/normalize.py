"""RMS normalisation, alone and fused with the rounding of what a linear layer reads next.

``lanes`` is the number of float32 in a vector; a chunk is a row. The mean of squares is summed
in ``lanes`` float32 partial sums; relative error of an element below ``size / lanes * 2**-24``
in the worst case and about 2e-7 in practice.
"""

from __future__ import annotations

from math import sqrt

from numba import float32, int32, njit

from edgerun.kernels.jit.registry import Body, kernel
from edgerun.kernels.lang.simd import (
    absolute,
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
from edgerun.kernels.lang.word import float_at, set_float, set_int, word
from edgerun.kernels.pointwise.quantize import block_factor, fill_zero, row_factor


@njit(inline="always")
def inverse_rms(x, size, epsilon, lanes):  # type: ignore[no-untyped-def]
    """``1 / sqrt(mean(x ** 2) + epsilon)`` of ``size`` float32."""
    whole = size // lanes * lanes
    total = splat(float32(0), "f32", lanes)
    for index in range(0, whole, lanes):
        v = load(x + index * 4, "f32", lanes)
        total = fma(v, v, total)
    result = reduce_add(total)
    for index in range(whole, size):
        result += float_at(x, index) * float_at(x, index)
    return float32(1) / float32(sqrt(result / float32(size) + epsilon))


@njit(inline="always")
def normal(x, weight, index, inverse, lanes):  # type: ignore[no-untyped-def]
    """Elements ``index ..`` of a normalised row."""
    scaled = load(x + index * 4, "f32", lanes) * splat(inverse, "f32", lanes)
    return scaled * load(weight + index * 4, "f32", lanes)


@njit(inline="always")
def largest_normal(x, weight, first, last, inverse, lanes):  # type: ignore[no-untyped-def]
    """Largest magnitude among elements ``first .. last - 1`` of a normalised row."""
    whole = first + (last - first) // lanes * lanes
    top = splat(float32(0), "f32", lanes)
    for index in range(first, whole, lanes):
        top = maximum(top, absolute(normal(x, weight, index, inverse, lanes)))
    result = reduce_max(top)
    for index in range(whole, last):
        result = max(result, reduce_max(absolute(normal(x, weight, index, inverse, 1))))
    return result


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
        one = cast(round_even(value), "i32")
        result += reduce_add(one)
        store(q + index, cast(one, "i8"))
    return result


@kernel("rms_norm", "rows x x_stride weight out out_stride groups size epsilon")
def rms_norm(lanes: int) -> Body:
    """Normalises ``groups`` groups of ``size`` elements a row with one ``weight [size]``.

    ``epsilon`` is the address of a float32; ``out`` may be ``x``.
    """

    def body(a: int, chunk: int) -> None:
        x, weight = word(a, 1) + chunk * word(a, 2) * 4, word(a, 3)
        out, size = word(a, 4) + chunk * word(a, 5) * 4, word(a, 7)
        whole = size // lanes * lanes
        for _group in range(word(a, 6)):
            inverse = inverse_rms(x, size, float_at(word(a, 8), 0), lanes)
            for index in range(0, whole, lanes):
                store(out + index * 4, normal(x, weight, index, inverse, lanes))
            for index in range(whole, size):
                store(out + index * 4, normal(x, weight, index, inverse, 1))
            x += size * 4
            out += size * 4

    return body


@kernel("rms_norm_row", "rows x x_stride weight size epsilon q q_stride scale sum")
def rms_norm_row(lanes: int) -> Body:
    """``rms_norm`` over whole rows, then ``quantize_row``; the float result is not stored.

    A code may differ by one from the two ops in sequence where a value lies at a half.
    """

    def body(a: int, chunk: int) -> None:
        x, weight, size = word(a, 1) + chunk * word(a, 2) * 4, word(a, 3), word(a, 4)
        q = word(a, 6) + chunk * word(a, 7)
        inverse = inverse_rms(x, size, float_at(word(a, 5), 0), lanes)
        factor = row_factor(largest_normal(x, weight, 0, size, inverse, lanes))
        total = round_normal(x, weight, 0, size, inverse, factor, q, lanes)
        fill_zero(q, size, word(a, 7))
        set_float(word(a, 8), chunk, float32(1) / factor)
        set_int(word(a, 9), chunk, total)

    return body


@kernel("rms_norm_block", "rows x x_stride weight size epsilon q q_stride scale sum blocks")
def rms_norm_block(block: int, lanes: int) -> Body:
    """``rms_norm`` over whole rows, then ``quantize_block``; the float result is not stored.

    A code may differ by one from the two ops in sequence where a value lies at a half.
    """

    def body(a: int, chunk: int) -> None:
        x, weight, size = word(a, 1) + chunk * word(a, 2) * 4, word(a, 3), word(a, 4)
        q, blocks = word(a, 6) + chunk * word(a, 7), word(a, 10)
        scales, sums = word(a, 8) + chunk * blocks * 4, word(a, 9) + chunk * blocks * 4
        inverse = inverse_rms(x, size, float_at(word(a, 5), 0), lanes)
        for index in range(blocks):
            first, last = min(size, index * block), min(size, (index + 1) * block)
            scale = largest_normal(x, weight, first, last, inverse, lanes) / float32(127)
            factor = block_factor(scale)
            total = round_normal(x, weight, first, last, inverse, factor, q, lanes)
            set_float(scales, index, scale)
            set_int(sums, index, total)
        fill_zero(q, size, word(a, 7))

    return body
