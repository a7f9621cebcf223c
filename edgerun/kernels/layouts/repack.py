"""Rearranges packed codes from the bundle's order into the stream layout (``stream.py``).

Source: ``row_bytes`` bytes a row, consecutive codes in consecutive bits. A dword of a row becomes
a dword of a vector, whose byte i then has codes i, i + 4, ... of the dword rather than
neighbours: bits change places within dwords. Which dwords make a vector is a transposition of
dwords. Scales, float32, are rearranged likewise, with their bits where they are, and leave room for
the vectors of zero points among them (``scale_vectors.py``), which a kernel of their own writes.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import float32, int32, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from edgerun.kernels.jit.declare import Arguments, Body, kernel
from edgerun.kernels.lang.ir import (
    I32,
    I64,
    integer,
    literals,
    load_from,
    pointer,
    prefetch_line,
    shuffle,
    variable,
)
from edgerun.kernels.lang.simd import Vec, constant, splat, store
from edgerun.kernels.lang.word import byte_at, int_at, set_float, set_int

DWORD = 4
# By bits of a code: which bits change places with those so many further on, one after the other.
FLOAT = 32  # bits of a scale, which is rearranged like four codes of eight
SWAPS = {
    2: ((0x00CC00CC, 6), (0x0000F0F0, 12)),
    4: ((0x0000F0F0, 12), (0x0000FF00, 8)),
    8: (),
    FLOAT: (),
}
EXPONENT = 0x7F800000  # of a float32 that is infinite or no number


def transpose(builder: Any, vectors: list[Any]) -> list[Any]:
    """Transposes n vectors of n dwords; n is 4, 8 or 16.

    Within 16 bytes by the unpacking of dwords and quadwords, then blocks of 16 bytes change
    places: one instruction a vector and step where vectors have up to 32 bytes.
    """
    count = len(vectors)
    parts = range(0, count, 4)
    low = [part + lane for part in parts for lane in (0, 1)]
    pairs = [low[i] + count * odd for i in range(0, len(low)) for odd in (0, 1)]
    high = [index + 2 for index in pairs]
    quads = [part + lane + count * odd for part in parts for odd in (0, 1) for lane in (0, 1)]
    rows: list[Any] = [None] * count
    for part in parts:
        a, b, c, d = vectors[part : part + 4]
        for lane, index in ((0, pairs), (2, high)):
            ab, cd = shuffle(builder, a, b, index), shuffle(builder, c, d, index)
            rows[part + lane] = shuffle(builder, ab, cd, quads)
            rows[part + lane + 1] = shuffle(builder, ab, cd, [index + 2 for index in quads])
    block = 4
    while block < count:
        lanes = range(count)
        for i in (i for i in lanes if not i & block):
            a, b = rows[i], rows[i + block]
            first = [lane + count - block if lane & block else lane for lane in lanes]
            second = [lane + count if lane & block else lane + block for lane in lanes]
            rows[i] = shuffle(builder, a, b, first)
            rows[i + block] = shuffle(builder, a, b, second)
        block *= 2
    return rows


@intrinsic(prefer_literal=True)
def _interleave(  # type: ignore[no-untyped-def]
    typingctx, source, row_bytes, row, last, dwords, target, group, shift, bits, lanes
):
    """Vectors ``[dwords, lanes]`` from the dwords of the ``lanes // 4`` rows from ``row`` on.

    ``source`` is the address of row 0; rows beyond ``last`` are read as ``last``. As many dwords
    as rows are taken at a time, the last of them perhaps twice, or one where a row has fewer.
    Their places are those of ``_place``. Returns what ``_flagged`` says of all of them together.
    """
    values = literals(bits, lanes)
    if values is None:
        return None
    size, width = values
    vec = Vec("i32", width // DWORD)

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        start, row_size, first, limit, number, target, group, shift = args[:8]
        rows = []
        for index in range(vec.lanes):
            number_of_row = builder.add(first, integer(index))
            inside = builder.icmp_signed("<", number_of_row, limit)
            chosen = builder.select(inside, number_of_row, limit)
            rows.append(builder.add(start, builder.mul(chosen, row_size)))
        flags = variable(builder, constant(vec, 0))

        def keep(vector: Any, index: Any) -> None:
            flagged = builder.or_(builder.load(flags), _flagged(builder, vector, vec, size))
            builder.store(flagged, flags)
            further = builder.lshr(builder.add(index, group), shift)
            place = builder.mul(builder.add(index, further), integer(width))
            place = builder.add(target, place)
            _store_past_cache(builder, _swapped(builder, vector, vec, size), place, width)

        at_once = integer(vec.lanes)
        is_long = builder.icmp_signed(">=", number, at_once)
        with builder.if_else(is_long) as (several, single):
            with several:
                _interleave_blocks(builder, rows, row_size, number, vec, keep)
            with single, cgutils.for_range(builder, number, intp=I64) as loop:
                vector = constant(vec, 0)
                for index, base in enumerate(rows):
                    at = builder.add(base, builder.mul(loop.index, integer(DWORD)))
                    dword = load_from(builder, at, I32)
                    vector = builder.insert_element(vector, dword, ir.Constant(I32, index))
                keep(vector, loop.index)
        return builder.load(flags)

    return vec(*[types.intp] * 8, bits, lanes), codegen


def _interleave_blocks(
    builder: Any, rows: list[Any], row_size: Any, dwords: Any, vec: Vec, keep: Any
) -> None:
    """Transposes blocks of as many dwords as there are rows.

    Rows are streams too many for the processor to foresee: the place of the next rows is asked for.
    """
    count = vec.lanes
    blocks = builder.udiv(builder.add(dwords, integer(count - 1)), integer(count))
    last = builder.sub(dwords, integer(count))
    ahead = builder.mul(row_size, integer(count))
    with cgutils.for_range(builder, blocks, intp=I64) as loop:
        first = builder.mul(loop.index, integer(count))
        inside = builder.icmp_signed("<", first, last)
        first = builder.select(inside, first, last)
        places = [builder.add(base, builder.mul(first, integer(DWORD))) for base in rows]
        vectors = [load_from(builder, place, vec.llvm) for place in places]
        for place in places:
            prefetch_line(builder, builder.add(place, ahead))
        for index, vector in enumerate(transpose(builder, vectors)):
            keep(vector, builder.add(first, integer(index)))


def _store_past_cache(builder: Any, value: Any, address: Any, alignment: int) -> None:
    """Stores a vector that nobody reads soon; ``_settle`` must follow before anybody does."""
    stored = builder.store(value, pointer(builder, address, value.type))
    stored.align = alignment
    stored.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(I32, 1)]))


@intrinsic
def _settle(typingctx):  # type: ignore[no-untyped-def]
    """Ends stores past the cache, so that they are seen before all that is stored later."""

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), codegen


def _flagged(builder: Any, dwords: Any, vec: Vec, bits: int) -> Any:
    """Bits that are set where a 2-bit code is 0, or a float32 is infinite or no number."""
    if bits == 2:
        zeros = builder.or_(dwords, builder.lshr(dwords, constant(vec, 1)))
        return builder.and_(builder.not_(zeros), constant(vec, 0x55555555))
    if bits == FLOAT:
        exponents = builder.and_(dwords, constant(vec, EXPONENT))
        wrong = builder.icmp_unsigned("==", exponents, constant(vec, EXPONENT))
        return builder.zext(wrong, vec.llvm)
    return constant(vec, 0)


def _swapped(builder: Any, dwords: Any, vec: Vec, bits: int) -> Any:
    """Moves code j of each dword from the places of ``pack_bits`` to plane j // 4 of byte j % 4."""
    for mask, distance in SWAPS[bits]:
        shift = constant(vec, distance)
        moved = builder.xor(dwords, builder.lshr(dwords, shift))
        moved = builder.and_(moved, constant(vec, mask))
        dwords = builder.xor(dwords, builder.xor(moved, builder.shl(moved, shift)))
    return dwords


@njit(inline="always")
def _place(index, group, shift):  # type: ignore[no-untyped-def]
    """Which vector of its panel holds a dword of the rows; see ``repack``."""
    return index + (index + group >> shift)


@kernel(
    "repack",
    "source:u8[rows, row_bytes] codes:u8[-(-rows // (lanes // 4)), vectors, lanes] rows row_bytes"
    " tiles vectors group shift step flags:u8[chunks, lanes]",
)
def repack(bits: int, lanes: int) -> Body:
    """Writes ``step`` panels of ``lanes // 4`` rows a chunk: uint8 ``codes[panels, tiles, lanes]``.

    ``row_bytes`` is a multiple of four, ``codes`` at a multiple of ``lanes``. Rows beyond the last
    repeat it, and are zero of scales; vectors beyond a row's end are zero. ``flags`` is
    ``[chunks, lanes]`` bytes: any is nonzero if a chunk has a code 0 of two bits, or a number of
    32 that is not finite.

    A panel has room for ``vectors``. Where that is for all that are written, ``group`` is 0 and
    ``shift`` such that no number of vectors reaches so far; else one vector is left alone in front
    of every ``group``, which is 1 << ``shift``.
    """
    panel_rows = lanes // DWORD

    def body(a: Arguments, chunk: int) -> None:
        source, rows, row_bytes, tiles = a.source, a.rows, a.row_bytes, a.tiles
        group, shift = a.group, a.shift
        first = chunk * a.step * panel_rows
        end = min(rows, first + a.step * panel_rows)
        dwords = min(row_bytes // DWORD, tiles)  # blocks may be longer than rows
        flags = splat(0, "i32", panel_rows)
        for row in range(first, end, panel_rows):
            target = a.codes + row // panel_rows * a.vectors * lanes
            flags = flags | _interleave(
                source, row_bytes, row, rows - 1, dwords, target, group, shift, bits, lanes
            )
            for tile in range(dwords, tiles):
                store(target + _place(tile, group, shift) * lanes, splat(0, "u8", lanes))
            if bits == FLOAT:
                for tile in range(tiles):
                    place = _place(tile, group, shift) * panel_rows
                    for index in range(rows - row, panel_rows):
                        set_float(target, place + index, float32(0))
        store(a.flags + chunk * lanes, flags)
        _settle()

    return body


@kernel(
    "repack_zeros",
    "source:u8[rows, row_bytes] codes:u8[-(-rows // (lanes // 4)), vectors, lanes] rows row_bytes"
    " tiles vectors group shift step flags:u8[chunks, lanes]",
)
def repack_zeros(lanes: int) -> Body:
    """Writes zero points into the vectors that ``repack`` leaves alone, ``step`` panels a chunk.

    Arguments are those of ``repack``; ``tiles`` of the ``vectors`` of a panel are written,
    ``group`` others behind each, and ``row_bytes`` may be any number. Bits stay in their order, and
    what is beyond a row or the last row is zero. No flag is raised, ``shift`` is not looked at.
    """
    panel_rows = lanes // DWORD

    def body(a: Arguments, chunk: int) -> None:
        rows, row_bytes, tiles, apart = a.rows, a.row_bytes, a.tiles, a.group + 1
        first = chunk * a.step * panel_rows
        end = min(-(-rows // panel_rows) * panel_rows, first + a.step * panel_rows)
        for row in range(first, end):
            panel, lane = row // panel_rows * a.vectors, row % panel_rows
            source = a.source + row * row_bytes
            for tile in range(tiles):
                dword = int32(0)
                if row < rows and (tile + 1) * DWORD <= row_bytes:
                    dword = int_at(source, tile)
                elif row < rows:
                    for place in range(row_bytes - tile * DWORD):
                        dword |= int32(byte_at(source, tile * DWORD + place)) << int32(8 * place)
                set_int(a.codes, (panel + tile * apart) * panel_rows + lane, dword)
        store(a.flags + chunk * lanes, splat(0, "u8", lanes))

    return body
