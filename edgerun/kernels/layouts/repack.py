"""Rearranges packed codes from the bundle's order into the stream layout (``stream.py``).

Source: ``row_bytes`` bytes a row, consecutive codes in consecutive bits. A dword of a row becomes
a dword of a vector, whose byte i then has codes i, i + 4, ... of the dword rather than
neighbours: bits change places within dwords. Which dwords make a vector is a transposition of
dwords.
"""

from __future__ import annotations

from typing import Any

from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from edgerun.kernels.jit.declare import Arguments, Body, kernel
from edgerun.kernels.lang.ir import I64, integer, literals, load_from, shuffle, store_to
from edgerun.kernels.lang.simd import Vec, constant, load, mask_bits, shift_right, splat, store
from edgerun.kernels.lang.word import byte_at

DWORD = 4
# By bits of a code: which bits change places with those so many further on, one after the other.
SWAPS = {2: ((0x00CC00CC, 6), (0x0000F0F0, 12)), 4: ((0x0000F0F0, 12), (0x0000FF00, 8)), 8: ()}


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
def _interleave(typingctx, source, row_bytes, row, last, dwords, target, bits, lanes):  # type: ignore[no-untyped-def]
    """Vectors ``[dwords, lanes]`` from the dwords of the ``lanes // 4`` rows from ``row`` on.

    ``source`` is the address of row 0; rows beyond ``last`` are read as ``last``. As many dwords
    as rows are taken at a time; ``dwords`` is a multiple of that, or there is a single one.
    """
    values = literals(bits, lanes)
    if values is None:
        return None
    size, width = values
    count = width // DWORD

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        start, row_size, first, limit, number, target = args[:6]
        rows = []
        for index in range(count):
            number_of_row = builder.add(first, integer(index))
            inside = builder.icmp_signed("<", number_of_row, limit)
            chosen = builder.select(inside, number_of_row, limit)
            rows.append(builder.add(start, builder.mul(chosen, row_size)))
        vec = Vec("i32", count)
        with cgutils.for_range(builder, builder.udiv(number, integer(count)), intp=I64) as loop:
            at = builder.mul(loop.index, integer(width))
            vectors = [load_from(builder, builder.add(base, at), vec.llvm) for base in rows]
            place = builder.add(target, builder.mul(loop.index, integer(width * count)))
            for index, vector in enumerate(transpose(builder, vectors)):
                swapped = _swapped(builder, vector, vec, size)
                store_to(builder, swapped, builder.add(place, integer(index * width)))
        return context.get_dummy_value()

    return types.void(*[types.intp] * 6, bits, lanes), codegen


@intrinsic(prefer_literal=True)
def _copy_dword(typingctx, source, target, bits):  # type: ignore[no-untyped-def]
    """Copies one dword, its bits where they belong."""
    values = literals(bits)
    if values is None:
        return None

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        vec = Vec("i32", 1)
        store_to(
            builder,
            _swapped(builder, load_from(builder, args[0], vec.llvm), vec, values[0]),
            args[1],
        )
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, bits), codegen


def _swapped(builder: Any, dwords: Any, vec: Vec, bits: int) -> Any:
    """Moves code j of each dword from the places of ``pack_bits`` to plane j // 4 of byte j % 4."""
    for mask, distance in SWAPS[bits]:
        shift = constant(vec, distance)
        moved = builder.xor(dwords, builder.lshr(dwords, shift))
        moved = builder.and_(moved, constant(vec, mask))
        dwords = builder.xor(dwords, builder.xor(moved, builder.shl(moved, shift)))
    return dwords


@njit(inline="always")
def _zero_codes(v):  # type: ignore[no-untyped-def]
    """Bits that are set where a 2-bit code is 0."""
    return mask_bits(v | shift_right(v, 1), 0x55) ^ splat(0x55, "u8", 16)


@njit(inline="always")
def _any_zero(row, row_bytes):  # type: ignore[no-untyped-def]
    """Bytes of which some are nonzero if a row of 2-bit codes has a 0."""
    zeros = splat(0, "u8", 16)
    for index in range(0, row_bytes - 15, 16):
        zeros = zeros | _zero_codes(load(row + index, "u8", 16))
    for index in range(row_bytes // 16 * 16, row_bytes):
        zeros = zeros | _zero_codes(splat(byte_at(row, index), "u8", 16))
    return zeros


@kernel(
    "repack",
    "source:u8[rows, row_bytes] codes:u8[-(-rows // (lanes // 4)), tiles, lanes] rows row_bytes"
    " tiles step zeros:u8[chunks, 16]",
)
def repack(bits: int, lanes: int) -> Body:
    """Writes ``step`` panels of ``lanes // 4`` rows a chunk: uint8 ``codes[panels, tiles, lanes]``.

    ``row_bytes`` is a multiple of four. Rows beyond the last repeat it; vectors beyond a row's
    end are zero. ``zeros`` is ``[chunks, 16]`` bytes: any is nonzero if a chunk has a 2-bit
    code 0.
    """
    panel_rows = lanes // DWORD

    def body(a: Arguments, chunk: int) -> None:
        source, rows, row_bytes, tiles = a.source, a.rows, a.row_bytes, a.tiles
        first = chunk * a.step * panel_rows
        end = min(rows, first + a.step * panel_rows)
        dwords = min(row_bytes // DWORD, tiles)  # blocks may be longer than rows
        whole = dwords // panel_rows * panel_rows
        zeros = splat(0, "u8", 16)
        for row in range(first, end, panel_rows):
            target = a.codes + row // panel_rows * tiles * lanes
            _interleave(source, row_bytes, row, rows - 1, whole, target, bits, lanes)
            for dword in range(whole, dwords):
                for index in range(panel_rows):
                    start = source + min(row + index, rows - 1) * row_bytes + dword * DWORD
                    _copy_dword(start, target + dword * lanes + index * DWORD, bits)
            for tile in range(dwords, tiles):
                store(target + tile * lanes, splat(0, "u8", lanes))
        if bits == 2:
            for row in range(first, end):
                zeros = zeros | _any_zero(source + row * row_bytes, row_bytes)
        store(a.zeros + chunk * 16, zeros)

    return body
