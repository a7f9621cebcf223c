"""Kernels that do no useful work: ``calibration`` times them to know the machine.

Each keeps one way to get at products busy from registers and the first level of the cache: the
multipliers of an instruction set, table lookup, the matrix unit of AMX.
What surrounds these operations in the kernels that do the work only costs time, so these are
bounds.
"""

from __future__ import annotations

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from edgerun.kernels.jit.declare import Arguments, Body, kernel
from edgerun.kernels.lang.dot import DOTS
from edgerun.kernels.lang.ir import I64, integer, literals, load_from, offset, store_to, variable
from edgerun.kernels.lang.isa import isa_of
from edgerun.kernels.lang.simd import Vec
from edgerun.kernels.lang.tile_registers import configure_tiles, release_tiles
from edgerun.kernels.layouts.tile_order import MOST_DEPTH, TOKENS
from edgerun.kernels.linear.amx_tiles import WIDTH, spin_tiles
from edgerun.kernels.linear.lookup_tiles import add_rows

CODES = 4  # vectors of codes, kept in registers
TILE_PRODUCTS = TOKENS * WIDTH * MOST_DEPTH
SUMS_BYTES = TOKENS * WIDTH * 4


@intrinsic(prefer_literal=True)
def _products(typingctx, codes, x, steps, out, places, lanes, isa):  # type: ignore[no-untyped-def]
    """``out[i] += codes[i % CODES] * x[...]`` for ``steps`` steps of ``places`` vectors each."""
    values = literals(places, lanes, isa)
    if values is None:
        return None
    count, width, dots = *values[:2], DOTS[isa_of(values[2]).dots]
    sum_bytes = width * isa_of(values[2]).partial
    narrow, partial = Vec("u8", width).llvm, dots.partial(width).llvm

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        def vectors(base, count, size, kind):  # type: ignore[no-untyped-def]
            places = [offset(builder, base, index * size) for index in range(count)]
            return places, [load_from(builder, place, kind) for place in places]

        _, weights = vectors(args[0], CODES, width, narrow)
        targets, values = vectors(args[3], CODES * count, sum_bytes, partial)
        sums = [variable(builder, value) for value in values]
        with cgutils.for_range(builder, args[2], intp=I64) as loop:
            start = builder.add(args[1], builder.mul(loop.index, integer(count * width)))
            _, xs = vectors(start, count, width, narrow)
            for index, total in enumerate(sums):
                x_vector, code = xs[index // CODES], weights[index % CODES]
                value = dots.add(builder, builder.load(total), code, x_vector, width)
                builder.store(value, total)
        for total, target in zip(sums, targets, strict=True):
            store_to(builder, builder.load(total), target)
        return context.get_dummy_value()

    return types.void(*[types.intp] * 4, places, lanes, isa), codegen


@kernel(
    "multiply_peak",
    f"codes:u8[{CODES}, lanes] x:i8[steps, places, lanes] steps repeats"
    f" out:u8[chunks, {CODES} * places * 2 * lanes]",
)
def multiply_peak(places: int, lanes: int, isa: str) -> Body:
    """Multiplies codes by activations and adds up, as fast as the instruction set can.

    ``codes`` is uint8 ``[CODES, lanes]`` of values 0 to 3, ``x`` int8 ``[steps * places,
    lanes]``, each read from the cache, ``repeats`` times over; ``out`` holds ``[CODES * places,
    Isa.partial * lanes]`` bytes a chunk: sums in the narrow type of the instruction set, which wrap
    around. A chunk is ``steps * repeats * CODES * places * lanes`` multiply-adds. A sum waits some
    five cycles for its last product, so that there are to be ten of them or more, if registers
    hold as many.
    """
    out_bytes = CODES * places * lanes * isa_of(isa).partial

    def body(a: Arguments, chunk: int) -> None:
        out = a.out + chunk * out_bytes
        for _repeat in range(a.repeats):
            _products(a.codes, a.x, a.steps, out, places, lanes, isa)

    return body


@kernel(
    "lookup_peak",
    "entries:u8[count, 8] sums:i16[chunks, count, tokens] table:i16[81, 8, tokens] count repeats",
)
def lookup_peak(tokens: int) -> Body:
    """Adds table entries as ``lookup_row`` does, from the cache.

    ``entries`` is uint8 ``[count, 8]``, ``table`` int16 ``[81, 8, tokens]``, ``sums`` int16
    ``[count, tokens]`` a chunk, which wrap around; ``count`` is even. An entry stands for four
    multiply-adds a token: a chunk is ``count * repeats * 32 * tokens`` of them.
    """

    def body(a: Arguments, chunk: int) -> None:
        sums = a.sums + chunk * a.count * tokens * 2
        for _repeat in range(a.repeats):
            add_rows(a.entries, sums, 0, a.table, a.count, tokens, 0, 0)

    return body


@kernel(
    "amx_peak",
    f"codes:u8[2, {MOST_DEPTH // 4}, {WIDTH // 2}, 4] x:i8[{TOKENS}, {MOST_DEPTH}]"
    f" out:i32[chunks, {TOKENS}, {WIDTH}] repeats",
)
def amx_peak(isa: str) -> Body:
    """Multiplies tiles as ``amx_row`` does, all from registers.

    ``codes`` is uint8 ``[2, 16, 16, 4]``, ``x`` int8 ``[32, 64]``, ``out`` int32 ``[32, 32]`` a
    chunk, which wraps around. A chunk is ``repeats * 32 * 32 * 64`` multiply-adds.
    """

    def body(a: Arguments, chunk: int) -> None:
        configure_tiles(MOST_DEPTH, isa)
        spin_tiles(a.codes, a.x, a.repeats, a.out + chunk * SUMS_BYTES, isa)
        release_tiles(MOST_DEPTH, isa)

    return body
