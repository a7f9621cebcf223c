"""Inner loops of the lookup kernels, emitted as LLVM IR: tables, additions, transposition.

A vector holds the int16 values of ``LANES`` tokens; wider blocks take several vectors an entry.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from edgerun.kernels.lang.ir import (
    I64,
    integer,
    literals,
    load_from,
    offset,
    pointer,
    shuffle,
    store_to,
)
from edgerun.kernels.lang.simd import Vec, constant

LANES = 16
BYTES = 8  # weight bytes, or groups of four weights, whose tables are used together
PAIR = 2  # vectors of weights that have so many bytes of a row
HALF = BYTES // PAIR
SUMS = 81  # entries of a table
VECTOR = Vec("i16", LANES)


def _load(builder: Any, address: Any, place: int, vec: Vec) -> Any:
    return load_from(builder, offset(builder, address, place), vec.llvm)


def _store(builder: Any, value: Any, address: Any, place: int) -> None:
    store_to(builder, value, offset(builder, address, place))


@intrinsic(prefer_literal=True)
def fill_tables(typingctx, columns, stride, table, tokens):  # type: ignore[no-untyped-def]
    """All sums of four columns with weights -1, 0 and 1, for each of ``HALF`` groups of four.

    Column i of group g is ``tokens`` int16 at ``columns + i * stride + g * tokens * 2``. The
    table is int16 ``[81, 8, tokens]``, of whose groups these are neighbours: entry
    ``d0 + 3 d1 + 9 d2 + 27 d3`` of a group holds the sum of ``(d_i - 1) * column_i``.
    """
    values = literals(tokens)
    if values is None:
        return None
    width = BYTES * values[0] * 2  # bytes of one entry of all groups

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        vectors = integer(width // (PAIR * LANES * 2))
        with cgutils.for_range(builder, vectors, intp=I64) as loop:
            place = builder.mul(loop.index, integer(LANES * 2))
            base, out = builder.add(args[0], place), builder.add(args[2], place)
            sums = [_two_columns(builder, base, args[1], first) for first in (0, 2)]
            for high in range(9):
                for low in range(9):
                    entry = builder.add(sums[0][low], sums[1][high])
                    _store(builder, entry, out, (high * 9 + low) * width)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp, tokens), codegen


def _two_columns(builder: Any, base: Any, step: Any, first: int) -> list[Any]:
    """The nine sums of columns ``first`` and ``first + 1``."""
    zero = constant(VECTOR, 0)
    choices = []
    for index in (first, first + 1):
        address = builder.add(base, builder.mul(step, integer(index)))
        column = _load(builder, address, 0, VECTOR)
        choices.append([builder.sub(zero, column), zero, column])
    return [builder.add(low, high) for high in choices[1] for low in choices[0]]


@intrinsic(prefer_literal=True)
def add_rows(typingctx, entries, sums, totals, table, count, tokens, fresh, last):  # type: ignore[no-untyped-def]
    """``sums[n] += sum_g table[entries[n, g], g]`` for ``count`` rows, an even number.

    ``entries`` are uint8 ``[count, 8]``, ``sums`` int16 and ``totals`` int32 ``[count, tokens]``,
    ``table`` int16 ``[81, 8, tokens]``. If ``fresh``, the sums start at zero, whatever they
    were; if ``last``, they are added to ``totals`` rather than stored.
    """
    values = literals(tokens, fresh, last)
    if values is None:
        return None
    vectors = values[0] // LANES
    size = vectors * LANES * 2
    middle = BYTES // 2 * size

    def one_row(builder: Any, addresses: list[Any], row: Any, table: Any) -> None:
        source, target, wide = (
            builder.add(start, builder.mul(row, integer(step)))
            for start, step in zip(addresses, (BYTES, size, 2 * size), strict=True)
        )
        offsets = _entry_offsets(builder, source, BYTES * size)
        for part in range(0, size, LANES * 2):
            total = None if values[1] else _load(builder, target, part, VECTOR)
            for group, entry in enumerate(offsets):
                place = builder.add(table, entry)
                value = _load(builder, place, group * size + part - middle, VECTOR)
                total = value if total is None else builder.add(total, value)
            if values[2]:
                _add_to(builder, wide, 2 * part, total)
            else:
                _store(builder, total, target, part)

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        # From its middle the first entries of all groups are in reach of one-byte displacements.
        table = _opaque(builder, builder.add(args[3], integer(middle)))
        with cgutils.for_range(builder, builder.lshr(args[4], integer(1)), intp=I64) as loop:
            for odd in range(2):
                row = builder.add(builder.shl(loop.index, integer(1)), integer(odd))
                one_row(builder, args[:3], row, table)
        return context.get_dummy_value()

    addresses = [types.intp] * 5
    return types.void(*addresses, tokens, fresh, last), codegen


def _add_to(builder: Any, address: Any, place: int, narrow: Any) -> None:
    """Adds int16 to int32 in memory."""
    wide = Vec("i32", LANES)
    before = _load(builder, address, place, wide)
    _store(builder, builder.add(before, builder.sext(narrow, wide.llvm)), address, place)


def _entry_offsets(builder: Any, source: Any, entry_bytes: int) -> list[Any]:
    """Eight entry numbers, a byte each, times ``entry_bytes``: 256 or 512.

    One load, and all eight are moved and masked in two words of four; taking them out one by one
    needs half as many instructions again. The optimiser must not see that it could.
    """
    shift = entry_bytes.bit_length() - 1
    eight = builder.load(pointer(builder, source, I64))
    eight.align = BYTES
    mask = integer(0x0001000100010001 * (127 << shift & 0xFFFF))
    shifts = (shift, shift - 8)  # of the bytes in even and in odd places
    moved = [builder.shl(eight, integer(distance)) for distance in shifts]
    words = [_opaque(builder, builder.and_(value, mask)) for value in moved]
    narrow = ir.IntType(32)
    offsets = []
    for half in (0, 32):
        parts = [builder.trunc(builder.lshr(value, integer(half)), narrow) for value in words]
        offsets += [builder.and_(part, ir.Constant(narrow, 0xFFFF)) for part in parts]
        offsets += [builder.lshr(part, ir.Constant(narrow, 16)) for part in parts]
    return [builder.zext(value, I64) for value in offsets]


def _opaque(builder: Any, value: Any) -> Any:
    """The same value, about which the optimiser knows nothing."""
    kind = ir.FunctionType(value.type, [value.type])
    return builder.asm(kind, "", "=r,0", [value], side_effect=False)


@intrinsic(prefer_literal=True)
def store_pair(typingctx, left, right, target):  # type: ignore[no-untyped-def]
    """Stores two vectors of bytes: four of the one, four of the other, and so on."""
    if not isinstance(left, Vec) or left != right:
        return None

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        count = left.lanes // 4
        a, b = (builder.bitcast(value, Vec("i32", count).llvm) for value in args[:2])
        order = [place for lane in range(count) for place in (lane, count + lane)]
        store_to(builder, shuffle(builder, a, b, order), args[2])
        return context.get_dummy_value()

    return types.void(left, right, types.intp), codegen


@intrinsic(prefer_literal=True)
def transpose_bytes(typingctx, source, stride, target, target_stride):  # type: ignore[no-untyped-def]
    """int8 ``[16, 16]`` with rows ``stride`` bytes apart to its transpose in int16.

    Rows of the result are ``target_stride`` bytes apart.
    """

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        rows = _transposed(builder, args[0], args[1], Vec("i8", LANES))
        for index, row in enumerate(rows):
            place = builder.add(args[2], builder.mul(args[3], integer(index)))
            _store(builder, builder.sext(row, VECTOR.llvm), place, 0)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp, types.intp), codegen


@intrinsic(prefer_literal=True)
def transpose_totals(typingctx, source, stride, target):  # type: ignore[no-untyped-def]
    """int32 ``[8, 8]`` with rows ``stride`` bytes apart to its transpose, without gaps."""

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        for index, row in enumerate(_transposed(builder, args[0], args[1], Vec("i32", 8))):
            _store(builder, row, args[2], index * 32)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp), codegen


def _transposed(builder: Any, source: Any, stride: Any, vec: Vec) -> list[Any]:
    """The columns of a square: rows i and i + n/2 interleaved, log2 n times."""
    count = vec.lanes
    rows = []
    for index in range(count):
        row = builder.add(source, builder.mul(stride, integer(index)))
        rows.append(_load(builder, row, 0, vec))
    for _ in range(count.bit_length() - 1):
        rows = [
            half
            for index in range(count // 2)
            for half in _interleaved(builder, rows[index], rows[index + count // 2])
        ]
    return rows


def _interleaved(builder: Any, a: Any, b: Any) -> list[Any]:
    """The first and the second half of ``a0 b0 a1 b1 ...``."""
    count = a.type.count
    halves = []
    for start in (0, count // 2):
        order = [part for i in range(start, start + count // 2) for part in (i, count + i)]
        halves.append(shuffle(builder, a, b, order))
    return halves
