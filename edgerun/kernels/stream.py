"""A kernel that only reads memory: the speed limit of everything that streams weights."""

from __future__ import annotations

from numba import int32

from edgerun.kernels.registry import Body, kernel
from edgerun.kernels.simd import load, reduce_add, splat
from edgerun.kernels.word import set_int, word

STREAMS = 4
LINE = 64


@kernel("stream_read", "data bytes sums")
def stream_read(lanes: int) -> Body:
    """Adds up the int32 of ``bytes`` bytes from ``data + chunk * bytes``; exact modulo 2**32.

    ``bytes`` is a multiple of ``STREAMS * LINE``; ``sums`` is int32 ``[chunks]``: without a
    result the loads would be left out. ``lanes`` is the number of int32 in a vector. Several
    streams and no prefetching read fastest, see ``layout.py``.
    """

    def body(a: int, chunk: int) -> None:
        x, part = word(a, 0) + chunk * word(a, 1), word(a, 1) // STREAMS
        s0 = splat(int32(0), "i32", lanes)
        s1 = s0
        s2 = s0
        s3 = s0
        for line in range(x, x + part, LINE):
            for place in range(line, line + LINE, 4 * lanes):
                s0 = s0 + load(place, "i32", lanes)
                s1 = s1 + load(place + part, "i32", lanes)
                s2 = s2 + load(place + 2 * part, "i32", lanes)
                s3 = s3 + load(place + 3 * part, "i32", lanes)
        set_int(word(a, 2), chunk, reduce_add(s0 + s1 + s2 + s3))

    return body
