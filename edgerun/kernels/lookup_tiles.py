"""Inner loops of the lookup kernels, emitted as LLVM IR: tables, additions, transposition.

A vector holds the int16 values of ``LANES`` tokens; wider blocks take several vectors an entry.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from edgerun.kernels.simd import Vec, constant, pointer

_I64 = ir.IntType(64)
LANES = 16
BYTES = 8  # weight bytes, or groups of four weights, whose tables are used together
SUMS = 81  # entries of a table
# Groups whose entries alternate. With 16 tokens an entry is half a cache line: reads of the one
# group and of the other never meet in a bank of the first-level cache.
PAIR = 2
VECTOR = Vec("i16", LANES)


def _literals(*kinds: Any) -> list[Any] | None:
    values = [getattr(kind, "literal_value", None) for kind in kinds]
    return None if None in values else values


def _at(builder: Any, address: Any, offset: int, kind: Any) -> Any:
    place = builder.add(address, ir.Constant(_I64, offset)) if offset else address
    return pointer(builder, place, kind)


def _load(builder: Any, address: Any, offset: int, vec: Vec) -> Any:
    value = builder.load(_at(builder, address, offset, vec.llvm))
    value.align = 1
    return value


def _store(builder: Any, value: Any, address: Any, offset: int) -> None:
    builder.store(value, _at(builder, address, offset, value.type)).align = 1


@intrinsic(prefer_literal=True)
def fill_table(typingctx, columns, stride, table, tokens):  # type: ignore[no-untyped-def]
    """All sums of four columns with weights -1, 0 and 1, for two groups of four columns.

    Column i of the first group is ``tokens`` int16 at ``columns + i * stride``; those of the
    second lie ``2 * tokens`` bytes further. Tables are int16 ``[81, 2, tokens]``: entry
    ``d0 + 3 d1 + 9 d2 + 27 d3`` of a group holds the sum of ``(d_i - 1) * column_i``.
    """
    values = _literals(tokens)
    if values is None:
        return None
    size = values[0] * 2

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        base, step, out = args[:3]
        for place in range(0, PAIR * size, LANES * 2):  # in bytes, within both groups' columns
            sums = [_two_columns(builder, base, step, first, place) for first in (0, 2)]
            for high in range(9):
                for low in range(9):
                    entry = builder.add(sums[0][low], sums[1][high])
                    _store(builder, entry, out, (high * 9 + low) * PAIR * size + place)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp, tokens), codegen


def _two_columns(builder: Any, base: Any, step: Any, first: int, place: int) -> list[Any]:
    """The nine sums of columns ``first`` and ``first + 1``."""
    zero = constant(VECTOR, 0)
    choices = []
    for index in (first, first + 1):
        address = builder.add(base, builder.mul(step, ir.Constant(_I64, index)))
        column = _load(builder, address, place, VECTOR)
        choices.append([builder.sub(zero, column), zero, column])
    return [builder.add(low, high) for high in choices[1] for low in choices[0]]


@intrinsic(prefer_literal=True)
def add_rows(typingctx, entries, sums, totals, table, count, tokens, fresh, last):  # type: ignore[no-untyped-def]
    """``sums[n] += sum_g table[g // 2, entries[n, g], g % 2]`` for ``count`` rows, an even number.

    ``entries`` are uint8 ``[count, 8]``, ``sums`` int16 and ``totals`` int32 ``[count, tokens]``,
    ``table`` int16 ``[4, 81, 2, tokens]``. If ``fresh``, the sums start at zero, whatever they
    were; if ``last``, they are added to ``totals`` rather than stored.
    """
    values = _literals(tokens, fresh, last)
    if values is None:
        return None
    vectors = values[0] // LANES
    size = vectors * LANES * 2

    def one_row(builder: Any, args: Any, row: Any) -> None:
        source = builder.add(args[0], builder.mul(row, ir.Constant(_I64, BYTES)))
        target = builder.add(args[1], builder.mul(row, ir.Constant(_I64, size)))
        offsets = _entry_offsets(builder, source, PAIR * size)
        start = builder.add(args[2], builder.mul(row, ir.Constant(_I64, 2 * size)))
        for part in range(0, size, LANES * 2):
            total = None if values[1] else _load(builder, target, part, VECTOR)
            for group, offset in enumerate(offsets):
                place = group // PAIR * PAIR * SUMS * size + group % PAIR * size + part
                found = _load(builder, builder.add(args[3], offset), place, VECTOR)
                total = found if total is None else builder.add(total, found)
            if values[2]:
                wide = Vec("i32", LANES)
                before = _load(builder, start, 2 * part, wide)
                _store(
                    builder, builder.add(before, builder.sext(total, wide.llvm)), start, 2 * part
                )
            else:
                _store(builder, total, target, part)

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        pairs = builder.lshr(args[4], ir.Constant(_I64, 1))
        with cgutils.for_range(builder, pairs, intp=_I64) as loop:
            first = builder.shl(loop.index, ir.Constant(_I64, 1))
            for row in (first, builder.add(first, ir.Constant(_I64, 1))):
                one_row(builder, args, row)
        return context.get_dummy_value()

    addresses = [types.intp] * 5
    return types.void(*addresses, tokens, fresh, last), codegen


def _entry_offsets(builder: Any, source: Any, entry_bytes: int) -> list[Any]:
    """Eight entry numbers, a byte each, times ``entry_bytes``, a power of two up to 256.

    One load, and all eight are moved and masked in two words of four; to take them out one by one
    is half as long again. The optimiser must not see that it can.
    """
    shift = entry_bytes.bit_length() - 1
    eight = builder.load(_at(builder, source, 0, _I64))
    eight.align = BYTES
    mask = ir.Constant(_I64, 0x00FF00FF00FF00FF << shift)
    even = builder.and_(builder.shl(eight, ir.Constant(_I64, shift)), mask)
    odd = builder.and_(builder.lshr(eight, ir.Constant(_I64, 8 - shift)), mask)
    words = [_opaque(builder, word) for word in (even, odd)]
    narrow = ir.IntType(32)
    offsets = []
    for half in (0, 32):
        parts = [
            builder.trunc(builder.lshr(word, ir.Constant(_I64, half)), narrow) for word in words
        ]
        offsets += [builder.and_(part, ir.Constant(narrow, 0xFFFF)) for part in parts]
        offsets += [builder.lshr(part, ir.Constant(narrow, 16)) for part in parts]
    return [builder.zext(offset, _I64) for offset in offsets]


def _opaque(builder: Any, value: Any) -> Any:
    """The same value, about which the optimiser knows nothing."""
    kind = ir.FunctionType(value.type, [value.type])
    return builder.asm(kind, "", "=r,0", [value], side_effect=False)


@intrinsic(prefer_literal=True)
def store_planes(typingctx, value, target, plane):  # type: ignore[no-untyped-def]
    """Stores 8 lanes of bytes at ``target``, the next 8 ``plane`` bytes further, and so on."""
    if not isinstance(value, Vec):
        return None

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        for index in range(value.lanes // BYTES):
            lanes = range(index * BYTES, (index + 1) * BYTES)
            mask = ir.Constant(ir.VectorType(ir.IntType(32), BYTES), list(lanes))
            part = builder.shuffle_vector(args[0], args[0], mask)
            place = builder.add(args[1], builder.mul(args[2], ir.Constant(_I64, index)))
            _store(builder, part, place, 0)
        return context.get_dummy_value()

    return types.void(value, types.intp, types.intp), codegen


@intrinsic(prefer_literal=True)
def store_planes_of_four(typingctx, a, b, c, d, target, plane):  # type: ignore[no-untyped-def]
    """``store_planes`` of four vectors whose pieces of 8 lanes lie side by side in memory.

    Long stores are what it takes to write to memory fast.
    """
    if not isinstance(a, Vec):
        return None

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        pieces = a.lanes // BYTES
        wide = ir.VectorType(_I64, pieces)
        words = [builder.bitcast(value, wide) for value in args[:4]]

        def picked(left: Any, right: Any, *order: int) -> Any:
            mask = ir.Constant(ir.VectorType(ir.IntType(32), len(order)), list(order))
            return builder.shuffle_vector(left, right, mask)

        for index in range(pieces):
            halves = [picked(*words[row : row + 2], index, pieces + index) for row in (0, 2)]
            place = builder.add(args[4], builder.mul(args[5], ir.Constant(_I64, index)))
            _store(builder, picked(*halves, 0, 1, 2, 3), place, 0)
        return context.get_dummy_value()

    return types.void(a, b, c, d, types.intp, types.intp), codegen


@intrinsic(prefer_literal=True)
def transpose_bytes(typingctx, source, stride, target, target_stride):  # type: ignore[no-untyped-def]
    """int8 ``[16, 16]`` with rows ``stride`` bytes apart to its transpose in int16.

    Rows of the result are ``target_stride`` bytes apart.
    """

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        rows = _transposed(builder, args[0], args[1], Vec("i8", LANES))
        for index, row in enumerate(rows):
            place = builder.add(args[2], builder.mul(args[3], ir.Constant(_I64, index)))
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
        row = builder.add(source, builder.mul(stride, ir.Constant(_I64, index)))
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
        mask = ir.Constant(ir.VectorType(ir.IntType(32), count), order)
        halves.append(builder.shuffle_vector(a, b, mask))
    return halves
