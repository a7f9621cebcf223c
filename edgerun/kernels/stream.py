"""A kernel that only reads memory: the speed limit of everything that streams weights."""

from __future__ import annotations

from numba import int32

from edgerun.kernels.machine import prefetch
from edgerun.kernels.registry import Body, kernel
from edgerun.kernels.simd import load, reduce_add, splat
from edgerun.kernels.word import set_int, word

LINE = 64
LINES_AHEAD = 32


@kernel("stream_read", "data bytes sums")
def stream_read(lanes: int) -> Body:
    """Adds the int32 of ``bytes`` bytes (a multiple of 256) from ``data + chunk * bytes``.

    ``sums`` is int32 ``[chunks]``; without a result the loads would be left out. ``lanes`` is
    the number of int32 in a vector.
    """

    def body(a: int, chunk: int) -> None:
        x = word(a, 0) + chunk * word(a, 1)
        end = x + word(a, 1)
        s0 = splat(int32(0), "i32", lanes)
        s1 = s0
        s2 = s0
        s3 = s0
        while x < end:
            prefetch(x + LINES_AHEAD * LINE)
            prefetch(x + (LINES_AHEAD + 1) * LINE)
            prefetch(x + (LINES_AHEAD + 2) * LINE)
            prefetch(x + (LINES_AHEAD + 3) * LINE)
            for _step in range(0, 4 * LINE, 16 * lanes):
                s0 = s0 + load(x, "i32", lanes)
                s1 = s1 + load(x + 4 * lanes, "i32", lanes)
                s2 = s2 + load(x + 8 * lanes, "i32", lanes)
                s3 = s3 + load(x + 12 * lanes, "i32", lanes)
                x += 16 * lanes
        set_int(word(a, 2), chunk, reduce_add(s0 + s1 + s2 + s3))

    return body
