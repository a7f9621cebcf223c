"""Kernels that multiply every element by a number, or keep it in a range.

Buffers are float32 ``[rows, stride]``; ``lanes`` is the number of float32 in a vector.
"""

from __future__ import annotations

from numba import njit

from edgerun.kernels.jit.declare import Arguments, Body, kernel
from edgerun.kernels.lang.simd import load, load_splat, maximum, minimum, store
from edgerun.kernels.lang.vectormath import exp, number
from edgerun.kernels.lang.word import float_at, set_float


@kernel("scale", "rows:i64[1] x:f32[rows, width] out:f32[rows, width] width factor:f32[1]")
def scale(lanes: int) -> Body:
    """``out = x * factor``; ``out`` may be ``x``; a chunk is a row. One rounding an element."""

    def body(a: Arguments, chunk: int) -> None:
        width = a.width
        x, out = a.x + chunk * width * 4, a.out + chunk * width * 4
        factor = load_splat(a.factor, lanes)
        whole = width // lanes * lanes
        for index in range(0, whole, lanes):
            store(out + index * 4, load(x + index * 4, "f32", lanes) * factor)
        for index in range(whole, width):
            set_float(out, index, float_at(x, index) * float_at(a.factor, 0))

    return body


@njit
def tanh(x):  # type: ignore[no-untyped-def]
    """Hyperbolic tangent of a float32 vector; NaN stays NaN.

    Relative error below 6e-7: near 0 the power series up to the ninth power, whose error is below
    1e-8 there, elsewhere ``1 - 2 / (e ** 2x + 1)``; which of them is a factor of 0 or 1.
    """
    zero, unit = number(x, 0), number(x, 1)
    size = maximum(x, zero - x)
    near = minimum(size, number(x, 0.25))
    square = near * near
    series = number(x, 62 / 2835) * square - number(x, 17 / 315)
    series = (series * square + number(x, 2 / 15)) * square - number(x, 1 / 3)
    series = near + near * square * series
    far = minimum(size, number(x, 10))  # from where on it is 1
    power = unit - number(x, 2) / (exp(far + far) + unit)
    is_far = minimum(maximum((size - number(x, 0.25)) * number(x, 1e30), zero), unit)
    result = series + is_far * (power - series)
    sign = minimum(maximum(x * number(x, 1e38), zero - unit), unit)
    return result * sign


@kernel(
    "softcap",
    "rows:i64[1] x:f32[rows, width; x_stride] x_stride out:f32[rows, width; out_stride] out_stride"
    " width pieces bound:f32[1]",
)
def softcap(lanes: int) -> Body:
    """``out = bound * tanh(x / bound)``; ``out`` may be ``x``.

    A row is cut into ``pieces``: chunk = row * pieces + piece. Relative error below 8e-7.
    """

    def body(a: Arguments, chunk: int) -> None:
        pieces, width = a.pieces, a.width
        row, piece = chunk // pieces, chunk % pieces
        size = (width // lanes + pieces - 1) // pieces * lanes
        first, last = piece * size, min(width, (piece + 1) * size)
        if piece == pieces - 1:
            last = width
        x, out = a.x + row * a.x_stride * 4, a.out + row * a.out_stride * 4
        whole = first + max(0, last - first) // lanes * lanes
        bound = load_splat(a.bound, lanes)
        for index in range(first, whole, lanes):
            store(out + index * 4, tanh(load(x + index * 4, "f32", lanes) / bound) * bound)
        single = load_splat(a.bound, 1)
        for index in range(whole, last):
            store(out + index * 4, tanh(load(x + index * 4, "f32", 1) / single) * single)

    return body
