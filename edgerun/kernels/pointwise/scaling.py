"""Kernels that multiply every element by a number, or keep it in a range.

Buffers are float32 ``[rows, stride]``; ``lanes`` is the number of float32 in a vector.
"""

from __future__ import annotations

from edgerun.kernels.jit.declare import Arguments, Body, kernel
from edgerun.kernels.lang.simd import load, load_splat, store
from edgerun.kernels.lang.vectormath import tanh
from edgerun.kernels.lang.word import float_at, set_float
from edgerun.kernels.pointwise.pieces import piece_of


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
        first, whole, last = piece_of(width, pieces, piece, lanes)
        x, out = a.x + row * a.x_stride * 4, a.out + row * a.out_stride * 4
        bound = load_splat(a.bound, lanes)
        for index in range(first, whole, lanes):
            store(out + index * 4, tanh(load(x + index * 4, "f32", lanes) / bound) * bound)
        single = load_splat(a.bound, 1)
        for index in range(whole, last):
            store(out + index * 4, tanh(load(x + index * 4, "f32", 1) / single) * single)

    return body
