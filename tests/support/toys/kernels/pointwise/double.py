"""Twice a value."""

from __future__ import annotations

from edgerun.kernels.jit.declare import Arguments, Body, kernel
from edgerun.kernels.lang.simd import load, store


@kernel(
    "double",
    "rows:i64[1] x:f32[rows, width; x_stride] x_stride out:f32[rows, width; out_stride] out_stride"
    " width",
)
def double(lanes: int) -> Body:
    """``out = x + x``, vector by vector; a chunk is a row. Exact."""

    def body(a: Arguments, chunk: int) -> None:
        x, out = a.x + chunk * a.x_stride * 4, a.out + chunk * a.out_stride * 4
        for index in range(0, a.width, lanes):
            value = load(x + index * 4, "f32", lanes)
            store(out + index * 4, value + value)

    return body
