"""Kernels that round activations to int8; codes are bit-equal to ``ops/linear.py``.

``x`` is float32 ``[rows, x_stride]``, ``q`` int8 ``[rows, q_stride]``, zero from ``width`` to
``q_stride``; a chunk is a row. ``lanes`` is the number of float32 in a vector.
"""

from __future__ import annotations

from numba import float32, int32, njit

from edgerun.kernels.jit.declare import Arguments, Body, kernel
from edgerun.kernels.lang.simd import (
    absolute,
    cast,
    load,
    maximum,
    reduce_add,
    reduce_max,
    reinterpret,
    round_even,
    splat,
    store,
)
from edgerun.kernels.lang.word import set_float, set_int

MIN_ABSMAX = 1e-5  # as in ops/linear.py
SMALLEST_NORMAL = 1.1754944e-38  # the inverse of a smaller scale overflows
ROUNDED_BLOCKS = (
    "rows:i64[1] x:f32[rows, width; x_stride] x_stride width"
    " q:i8[rows, max(width, q_stride); q_stride] q_stride"
    " scale:f32[rows, blocks] sum:i32[rows, blocks] blocks"
)


@njit(inline="always")
def magnitude(value):  # type: ignore[no-untyped-def]
    """Float32 without their signs, as int32: as bits they have the same order, NaN the highest."""
    return reinterpret(absolute(value), "i32")


@njit(inline="always")
def float_of(bits):  # type: ignore[no-untyped-def]
    """The float32 that ``magnitude`` made an int32 of."""
    return reduce_add(reinterpret(splat(int32(bits), "i32", 1), "f32"))


@njit(inline="always")
def largest(x, width, lanes):  # type: ignore[no-untyped-def]
    """Largest magnitude of ``width`` float32; NaN if one is."""
    whole = width // lanes * lanes
    top = splat(int32(0), "i32", lanes)
    for index in range(0, whole, lanes):
        top = maximum(top, magnitude(load(x + index * 4, "f32", lanes)))
    result = reduce_max(top)
    for index in range(whole, width):
        result = max(result, reduce_max(magnitude(load(x + index * 4, "f32", 1))))
    return float_of(result)


@njit(inline="always")
def round_codes(x, width, factor, q, lanes):  # type: ignore[no-untyped-def]
    """Stores ``rint(x * factor)`` as int8; returns the sum of the codes."""
    whole = width // lanes * lanes
    factors = splat(factor, "f32", lanes)
    total = splat(int32(0), "i32", lanes)
    for index in range(0, whole, lanes):
        codes = cast(round_even(load(x + index * 4, "f32", lanes) * factors), "i32")
        total = total + codes
        store(q + index, cast(codes, "i8"))
    result = reduce_add(total)
    for index in range(whole, width):
        code = cast(round_even(load(x + index * 4, "f32", 1) * splat(factor, "f32", 1)), "i32")
        result += reduce_add(code)
        store(q + index, cast(code, "i8"))
    return result


@njit
def fill_zero(q, first, last):  # type: ignore[no-untyped-def]
    """Sets the int8 codes ``first .. last - 1`` to zero."""
    for index in range(first, last):
        store(q + index, splat(0, "i8", 1))


@njit
def row_factor(top):  # type: ignore[no-untyped-def]
    """Codes per unit of a row whose largest magnitude is ``top``, which may be NaN."""
    return float32(127) / (float32(MIN_ABSMAX) if top < float32(MIN_ABSMAX) else top)


@njit
def block_factor(scale):  # type: ignore[no-untyped-def]
    """Codes per unit of a block; 0 for scales whose inverse is not a number."""
    return float32(1) / scale if scale >= float32(SMALLEST_NORMAL) else float32(0)


@kernel(
    "quantize_row",
    "rows:i64[1] x:f32[rows, width; x_stride] x_stride width"
    " q:i8[rows, max(width, q_stride); q_stride] q_stride scale:f32[rows] sum:i32[rows]",
)
def quantize_row(lanes: int) -> Body:
    """One scale a row: ``scale`` float32 ``[rows]``, ``sum`` of the codes int32 ``[rows]``."""

    def body(a: Arguments, chunk: int) -> None:
        x, width = a.x + chunk * a.x_stride * 4, a.width
        q = a.q + chunk * a.q_stride
        factor = row_factor(largest(x, width, lanes))
        total = round_codes(x, width, factor, q, lanes)
        fill_zero(q, width, a.q_stride)
        set_float(a.scale, chunk, float32(1) / factor)
        set_int(a.sum, chunk, total)

    return body


@kernel("quantize_block", ROUNDED_BLOCKS)
def quantize_block(block: int, lanes: int) -> Body:
    """One scale a block of K: ``scale`` float32 and ``sum`` int32 ``[rows, blocks]``.

    ``sum`` is the sum of a block's codes; blocks that begin after ``width`` are
    zero. ``q_stride`` must hold ``blocks * block`` codes or fewer whole blocks of real data.
    """

    def body(a: Arguments, chunk: int) -> None:
        x, width = a.x + chunk * a.x_stride * 4, a.width
        q, blocks = a.q + chunk * a.q_stride, a.blocks
        scales, sums = a.scale + chunk * blocks * 4, a.sum + chunk * blocks * 4
        for index in range(blocks):
            first = index * block
            size = max(0, min(block, width - first))
            scale = largest(x + first * 4, size, lanes) / float32(127)
            total = round_codes(x + first * 4, size, block_factor(scale), q + first, lanes)
            set_float(scales, index, scale)
            set_int(sums, index, total)
        fill_zero(q, width, a.q_stride)

    return body


@kernel("quantize_row_blocks", ROUNDED_BLOCKS)
def quantize_row_blocks(block: int, lanes: int) -> Body:
    """``quantize_row`` in the form of ``quantize_block``: every block repeats the row's scale.

    For rows rounded as a whole that meet weights with block scales.
    """

    def body(a: Arguments, chunk: int) -> None:
        x, width = a.x + chunk * a.x_stride * 4, a.width
        q, blocks = a.q + chunk * a.q_stride, a.blocks
        scales, sums = a.scale + chunk * blocks * 4, a.sum + chunk * blocks * 4
        factor = row_factor(largest(x, width, lanes))
        scale = float32(1) / factor
        for index in range(blocks):
            first = index * block
            size = max(0, min(block, width - first))
            total = round_codes(x + first * 4, size, factor, q + first, lanes)
            set_float(scales, index, scale)
            set_int(sums, index, total)
        fill_zero(q, width, a.q_stride)

    return body


@kernel(
    "round_row",
    "rows:i64[1] x:f32[rows, width; x_stride] x_stride width"
    " out:f32[rows, max(width, out_stride); out_stride] out_stride",
)
def round_row(lanes: int) -> Body:
    """``quantize_row`` and back: float32 codes times the scale; ``out`` may be ``x``.

    For rows rounded as a whole that meet float32 weights.
    """

    def body(a: Arguments, chunk: int) -> None:
        x, width = a.x + chunk * a.x_stride * 4, a.width
        out = a.out + chunk * a.out_stride * 4
        factor = row_factor(largest(x, width, lanes))
        whole = width // lanes * lanes
        factors = splat(factor, "f32", lanes)
        scales = splat(float32(1) / factor, "f32", lanes)
        for index in range(0, whole, lanes):
            codes = round_even(load(x + index * 4, "f32", lanes) * factors)
            store(out + index * 4, codes * scales)
        for index in range(whole, width):
            codes = round_even(load(x + index * 4, "f32", 1) * splat(factor, "f32", 1))
            store(out + index * 4, codes * splat(float32(1) / factor, "f32", 1))

    return body
