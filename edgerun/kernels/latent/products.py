"""Heads of rows that are multiplied by matrices of their own, in half or single precision."""

from __future__ import annotations

from collections.abc import Callable
from math import gcd

from numba import float32, njit

from edgerun.kernels.jit.declare import Arguments, Body, kernel
from edgerun.kernels.lang.simd import load, splat, store
from edgerun.kernels.lang.tiles import ELEMENT_BYTES, scratch, weigh_tile
from edgerun.kernels.lang.word import float_at, set_float, word

BLOCK = 4  # rows that are multiplied at a time
WIDE_LANES, WIDE_SUMS, SUMS = 16, 16, 8  # sums in registers: of 16 lanes there are twice as many


@kernel(
    "head_products",
    "rows:i64[1] x:f32[rows, heads, width; x_stride] x_stride"
    " weights:u8[heads, inputs, outputs, item] out:f32[rows, heads, out_width; out_stride]"
    " out_stride heads width inputs item half copied out_width",
)
def head_products(dtype: str, outputs: int, lanes: int) -> Body:
    """Multiplies each head of a row by its matrix; a chunk is a head.

    The halves of a head begin ``half`` elements apart. Of each, ``inputs / 2`` elements are
    multiplied that lie behind ``copied``; these follow the ``outputs`` products as they are, then
    zeros up to ``out_width``. ``weights`` are ``[heads, inputs, outputs]`` of ``item`` bytes each.
    A sum is added up in the order of inputs, whatever the rows beside it. Error below ``inputs *
    2**-24`` of the sum of magnitudes.
    """
    lanes, item = gcd(outputs, lanes), ELEMENT_BYTES[dtype]
    sums = WIDE_SUMS if lanes >= WIDE_LANES else SUMS
    alone, together = (gcd(outputs // lanes, sums // rows) for rows in (1, BLOCK))
    of_one = _multiplying(dtype, outputs, lanes, 1, alone)
    of_several = _multiplying(dtype, outputs, lanes, BLOCK, together)
    area = BLOCK * outputs * 4

    def body(a: Arguments, chunk: int) -> None:
        rows, totals = word(a.rows, 0), scratch(area)
        weights = a.weights + chunk * a.inputs * outputs * item
        x = a.x + chunk * a.width * 4
        out = a.out + chunk * a.out_width * 4
        whole = rows // BLOCK * BLOCK
        for column in range(0, outputs, together * lanes):  # whose weights stay in the first cache
            for row in range(0, whole, BLOCK):
                of_several(a, x, out, row, weights, totals, column)
        for row in range(whole, rows):
            for column in range(0, outputs, alone * lanes):
                of_one(a, x, out, row, weights, totals, column)
        for row in range(rows):
            target = out + (row * a.out_stride + outputs) * 4
            _keep(a, x + row * a.x_stride * 4, target, a.out_width - outputs)

    return body


def _multiplying(
    dtype: str, outputs: int, lanes: int, rows: int, vectors: int
) -> Callable[..., None]:
    """The function that multiplies a few rows by some columns of a head's matrix."""
    item = ELEMENT_BYTES[dtype]

    @njit(inline="always")
    def multiply(a, x, out, row, weights, totals, column):  # type: ignore[no-untyped-def]
        zero, count = splat(float32(0), "f32", lanes), a.inputs // 2
        for m in range(rows):
            for index in range(vectors):
                store(totals + (m * outputs + column + index * lanes) * 4, zero)
        for part in range(2):
            weigh_tile(
                x + (row * a.x_stride + part * a.half + a.copied) * 4,
                a.x_stride,
                weights + (part * count * outputs + column) * item,
                count,
                totals + column * 4,
                rows,
                vectors,
                outputs,
                dtype,
                lanes,
            )
        for m in range(rows):
            target = out + ((row + m) * a.out_stride + column) * 4
            for index in range(vectors):
                source = totals + (m * outputs + column + index * lanes) * 4
                store(target + index * lanes * 4, load(source, "f32", lanes))

    multiplying: Callable[..., None] = multiply
    return multiplying


@njit(inline="always")
def _keep(a, head, target, room):  # type: ignore[no-untyped-def]
    """Copies what is not multiplied behind what is, and zeros behind that."""
    copied = a.copied
    for index in range(copied):
        set_float(target, index, float_at(head, index))
        set_float(target, copied + index, float_at(head, a.half + index))
    for index in range(2 * copied, room):
        set_float(target, index, float32(0))
