"""Twice a value."""

from __future__ import annotations

from edgerun.kernels.jit.registry import Body, kernel
from edgerun.kernels.lang.simd import load, store
from edgerun.kernels.lang.word import word


@kernel("double", "rows x x_stride out out_stride width")
def double(lanes: int) -> Body:
    """``out = x + x``, vector by vector; a chunk is a row. Exact."""

    def body(a: int, chunk: int) -> None:
        x, out = word(a, 1) + chunk * word(a, 2) * 4, word(a, 3) + chunk * word(a, 4) * 4
        for index in range(0, word(a, 5), lanes):
            value = load(x + index * 4, "f32", lanes)
            store(out + index * 4, value + value)

    return body
