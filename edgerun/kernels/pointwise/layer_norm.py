"""Normalisation by mean and deviation, alone and fused with rounding, as ``normalize.py`` has it.

Relative errors are those of the sums in ``magnitudes.py``.
"""

from __future__ import annotations

from math import sqrt

from numba import float32, njit

from edgerun.kernels.jit.declare import Arguments, Body, kernel
from edgerun.kernels.lang.simd import fma, load, splat, store
from edgerun.kernels.lang.word import float_at
from edgerun.kernels.pointwise.magnitudes import mean_of, variance_of
from edgerun.kernels.pointwise.normalize import (
    NORMED,
    ROUNDED_BLOCK,
    ROUNDED_ROW,
    Norm,
    block_rounding,
    row_rounding,
)

_VECTORS = "weight:f32[size] bias:f32[size]"


@njit(inline="always")
def _measure(a, x, lanes):  # type: ignore[no-untyped-def]
    mean = mean_of(x, a.size, lanes)
    variance = variance_of(x, a.size, mean, lanes)
    return mean, float32(1) / float32(sqrt(variance + float_at(a.epsilon, 0)))


@njit(inline="always")
def _standard(x, weight, bias, index, mean, inverse, lanes):  # type: ignore[no-untyped-def]
    """Elements ``index ..`` of a row, normalised by its mean and its deviation from it."""
    centred = load(x + index * 4, "f32", lanes) - splat(mean, "f32", lanes)
    scaled = centred * splat(inverse, "f32", lanes)
    return fma(scaled, load(weight + index * 4, "f32", lanes), load(bias + index * 4, "f32", lanes))


@njit(inline="always")
def _element(a, x, index, mean, inverse, lanes):  # type: ignore[no-untyped-def]
    return _standard(x, a.weight, a.bias, index, mean, inverse, lanes)


LAYER = Norm(_measure, _element)


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
            mean, inverse = _measure(a, x, lanes)
            for index in range(0, whole, lanes):
                store(out + index * 4, _standard(x, weight, bias, index, mean, inverse, lanes))
            for index in range(whole, size):
                store(out + index * 4, _standard(x, weight, bias, index, mean, inverse, 1))
            x += size * 4
            out += size * 4
            weight += size * 4
            bias += size * 4

    return body


@kernel("layer_norm_row", f"{NORMED} {_VECTORS} {ROUNDED_ROW}")
def layer_norm_row(lanes: int) -> Body:
    """``layer_norm``, then ``quantize_row``; the float result is not stored."""
    return row_rounding(LAYER, lanes)


@kernel("layer_norm_block", f"{NORMED} {_VECTORS} {ROUNDED_BLOCK}")
def layer_norm_block(block: int, lanes: int) -> Body:
    """``layer_norm``, then ``quantize_block``; the float result is not stored."""
    return block_rounding(LAYER, block, lanes)
