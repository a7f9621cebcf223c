"""A kernel that only reads memory: the speed limit of everything that streams weights.

How a core reads fastest differs between processors: from how many places side by side, and
whether it pays to ask for lines ahead. ``profile.py`` tries several ways; the best one counts.
"""

from __future__ import annotations

from numba import types
from numba.extending import intrinsic

from edgerun.kernels.jit.declare import Arguments, Body, kernel
from edgerun.kernels.lang.intrinsics import prefetch
from edgerun.kernels.lang.ir import integer, literals, load_from, offset
from edgerun.kernels.lang.simd import Vec, constant, reduce_add, splat
from edgerun.kernels.lang.word import set_int

LINE = 64


@intrinsic(prefer_literal=True)
def _sum_lines(typingctx, address, streams, apart, lanes):  # type: ignore[no-untyped-def]
    """Sum of the int32 in one line of each stream; the streams are ``apart`` bytes apart."""
    values = literals(streams, lanes)
    if values is None:
        return None
    count, width = values
    vec = Vec("i32", width)

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        total = constant(vec, 0)
        for stream in range(count):
            start = builder.add(args[0], builder.mul(args[2], integer(stream)))
            for place in range(0, LINE, 4 * width):
                value = load_from(builder, offset(builder, start, place), vec.llvm)
                total = builder.add(total, value)
        return total

    return vec(types.intp, streams, types.intp, lanes), codegen


@kernel("stream_read", "data:u8[chunks, bytes] bytes sums:i32[chunks]")
def stream_read(lanes: int, streams: int = 4, ahead: int = 0) -> Body:
    """Adds up the int32 of ``bytes`` bytes from ``data + chunk * bytes``; exact modulo 2**32.

    ``bytes`` is a multiple of ``streams * LINE``; ``sums`` is int32 ``[chunks]``: without a
    result the loads would be left out. ``lanes`` is the number of int32 in a vector. The chunk
    is read from ``streams`` places side by side; ``ahead`` bytes further on lines are asked for,
    0 leaves that to the processor.
    """

    def plain(a: Arguments, chunk: int) -> None:
        x, part = a.data + chunk * a.bytes, a.bytes // streams
        total = splat(0, "i32", lanes)
        for line in range(x, x + part, LINE):
            total = total + _sum_lines(line, streams, part, lanes)
        set_int(a.sums, chunk, reduce_add(total))

    def asking(a: Arguments, chunk: int) -> None:
        x, part = a.data + chunk * a.bytes, a.bytes // streams
        total = splat(0, "i32", lanes)
        for line in range(x, x + part, LINE):
            for stream in range(streams):
                prefetch(line + stream * part + ahead)
            total = total + _sum_lines(line, streams, part, lanes)
        set_int(a.sums, chunk, reduce_add(total))

    return asking if ahead else plain
