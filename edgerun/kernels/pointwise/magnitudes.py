"""Kernels that look at a whole row to see how large its elements are, and then change each.

``lanes`` is the number of float32 in a vector; a chunk is a row. Sums are taken in ``lanes``
float32 partial sums; relative error of one below ``width / lanes * 2**-24`` in the worst case and
about 2e-7 in practice.
"""

from __future__ import annotations

from math import sqrt

from numba import float32, njit

from edgerun.kernels.jit.declare import Arguments, Body, kernel
from edgerun.kernels.lang.simd import fma, load, maximum, reduce_add, splat, store
from edgerun.kernels.lang.word import float_at
from edgerun.kernels.pointwise.normalize import mean_of_squares


@kernel(
    "match_magnitude",
    "rows:i64[1] x:f32[rows, width; x_stride] x_stride like:f32[rows, width; like_stride]"
    " like_stride out:f32[rows, width; out_stride] out_stride width floor:f32[1]",
)
def match_magnitude(lanes: int) -> Body:
    """``out = x * (rms(like) / sqrt(max(mean(x ** 2), floor)))``; ``out`` may be ``x``.

    ``floor`` is the address of a float32.
    """

    def body(a: Arguments, chunk: int) -> None:
        width = a.width
        x, out = a.x + chunk * a.x_stride * 4, a.out + chunk * a.out_stride * 4
        expected = mean_of_squares(a.like + chunk * a.like_stride * 4, width, lanes)
        own = mean_of_squares(x, width, lanes)
        if own < float_at(a.floor, 0):  # NaN stays
            own = float_at(a.floor, 0)
        factor = float32(sqrt(expected)) / float32(sqrt(own))
        whole = width // lanes * lanes
        for index in range(0, whole, lanes):
            value = load(x + index * 4, "f32", lanes) * splat(factor, "f32", lanes)
            store(out + index * 4, value)
        for index in range(whole, width):
            store(out + index * 4, load(x + index * 4, "f32", 1) * splat(factor, "f32", 1))

    return body


@njit(inline="always")
def mean_of(x, size, lanes):  # type: ignore[no-untyped-def]
    """Mean of ``size`` float32."""
    whole = size // lanes * lanes
    total = splat(float32(0), "f32", lanes)
    for index in range(0, whole, lanes):
        total = total + load(x + index * 4, "f32", lanes)
    result = reduce_add(total)
    for index in range(whole, size):
        result += float_at(x, index)
    return result / float32(size)


@njit(inline="always")
def variance_of(x, size, mean, lanes):  # type: ignore[no-untyped-def]
    """Variance of ``size`` float32 whose mean is given."""
    whole = size // lanes * lanes
    total, middle = splat(float32(0), "f32", lanes), splat(mean, "f32", lanes)
    for index in range(0, whole, lanes):
        centred = load(x + index * 4, "f32", lanes) - middle
        total = fma(centred, centred, total)
    result = reduce_add(total)
    for index in range(whole, size):
        difference = float_at(x, index) - mean
        result += difference * difference
    return result / float32(size)


@kernel(
    "gaussian_top_k",
    "rows:i64[1] x:f32[rows, width; x_stride] x_stride out:f32[rows, width; out_stride] out_stride"
    " width deviations:f32[1]",
)
def gaussian_top_k(lanes: int) -> Body:
    """``out = max(x - mean(x) - deviations * std(x), 0)``; ``out`` may be ``x``.

    ``deviations`` is the address of a float32.
    """

    def body(a: Arguments, chunk: int) -> None:
        width = a.width
        x, out = a.x + chunk * a.x_stride * 4, a.out + chunk * a.out_stride * 4
        mean = mean_of(x, width, lanes)
        deviation = float32(sqrt(variance_of(x, width, mean, lanes)))
        cut = deviation * float_at(a.deviations, 0)
        whole = width // lanes * lanes
        middle, least = splat(mean, "f32", lanes), splat(cut, "f32", lanes)
        zero = splat(float32(0), "f32", lanes)
        for index in range(0, whole, lanes):
            value = load(x + index * 4, "f32", lanes) - middle
            store(out + index * 4, maximum(value - least, zero))
        for index in range(whole, width):
            single = load(x + index * 4, "f32", 1) - splat(mean, "f32", 1)
            rest = single - splat(cut, "f32", 1)
            store(out + index * 4, maximum(rest, splat(float32(0), "f32", 1)))

    return body


@njit(inline="always")
def _standard(x, weight, bias, index, mean, inverse, lanes):  # type: ignore[no-untyped-def]
    """Elements ``index ..`` of a row, normalised by its mean and its deviation from it."""
    centred = load(x + index * 4, "f32", lanes) - splat(mean, "f32", lanes)
    scaled = centred * splat(inverse, "f32", lanes)
    return fma(scaled, load(weight + index * 4, "f32", lanes), load(bias + index * 4, "f32", lanes))


@kernel(
    "layer_norm",
    "rows:i64[1] x:f32[rows, groups, size; x_stride] x_stride weight:f32[groups, size]"
    " bias:f32[groups, size] out:f32[rows, groups, size; out_stride] out_stride groups size"
    " epsilon:f32[1]",
)
def layer_norm(lanes: int) -> Body:
    """See ``ops/layer_norm.py``; ``out`` may be ``x``.

    ``size`` are the elements of a group; ``epsilon`` is the address of a float32.
    """

    def body(a: Arguments, chunk: int) -> None:
        size, weight, bias = a.size, a.weight, a.bias
        x, out = a.x + chunk * a.x_stride * 4, a.out + chunk * a.out_stride * 4
        whole = size // lanes * lanes
        for _group in range(a.groups):
            mean = mean_of(x, size, lanes)
            variance = variance_of(x, size, mean, lanes)
            inverse = float32(1) / float32(sqrt(variance + float_at(a.epsilon, 0)))
            for index in range(0, whole, lanes):
                store(out + index * 4, _standard(x, weight, bias, index, mean, inverse, lanes))
            for index in range(whole, size):
                store(out + index * 4, _standard(x, weight, bias, index, mean, inverse, 1))
            x += size * 4
            out += size * 4
            weight += size * 4
            bias += size * 4

    return body
