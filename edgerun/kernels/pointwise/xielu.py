"""The kernel of an activation whose curve is a model's own.

Buffers are float32 ``[rows, stride]``; ``lanes`` is the number of float32 in a vector.
"""

from __future__ import annotations

from typing import Any

from numba import njit

from edgerun.kernels.jit.declare import Arguments, Body, kernel
from edgerun.kernels.lang.simd import load, load_splat, maximum, minimum, store
from edgerun.kernels.lang.vectormath import exp_bend, number
from edgerun.kernels.pointwise.pieces import piece_of


@njit(inline="always")
def _curve(x: Any, square: Any, bend: Any, slope: Any) -> Any:
    above, below = maximum(x, number(x, 0)), minimum(x, number(x, 0))
    return square * above * above + bend * exp_bend(below) + slope * x


@kernel(
    "xielu",
    "rows:i64[1] x:f32[rows, width; x_stride] x_stride out:f32[rows, width; out_stride] out_stride"
    " width pieces square:f32[1] bend:f32[1] slope:f32[1]",
)
def xielu(lanes: int) -> Body:
    """See ``ops/pointwise/xielu.py``; ``out`` may be ``x``.

    A row is cut into ``pieces``: chunk = row * pieces + piece. The error is below 1e-6 of the sum
    of the three terms' magnitudes.
    """

    def body(a: Arguments, chunk: int) -> None:
        pieces, width = a.pieces, a.width
        row, piece = chunk // pieces, chunk % pieces
        first, whole, last = piece_of(width, pieces, piece, lanes)
        x, out = a.x + row * a.x_stride * 4, a.out + row * a.out_stride * 4
        square, bend, slope = (
            load_splat(a.square, lanes),
            load_splat(a.bend, lanes),
            load_splat(a.slope, lanes),
        )
        for index in range(first, whole, lanes):
            value = load(x + index * 4, "f32", lanes)
            store(out + index * 4, _curve(value, square, bend, slope))
        for index in range(whole, last):
            value = load(x + index * 4, "f32", 1)
            curve = _curve(
                value, load_splat(a.square, 1), load_splat(a.bend, 1), load_splat(a.slope, 1)
            )
            store(out + index * 4, curve)

    return body
