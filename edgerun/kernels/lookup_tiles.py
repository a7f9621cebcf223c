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
    """All sums of four columns with weights -1, 0 and 1: int16 ``table[81, tokens]``.

    Column i is ``tokens`` int16 at ``columns + i * stride``; entry ``d0 + 3 d1 + 9 d2 + 27 d3``
    holds the sum of ``(d_i - 1) * column_i``.
    """
    values = _literals(tokens)
    if values is None:
        return None
    vectors = values[0] // LANES

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        base, step, out = args[:3]
        for part in range(vectors):
            sums = [_two_columns(builder, base, step, first, part) for first in (0, 2)]
            for high in range(9):
                for low in range(9):
                    entry = builder.add(sums[0][low], sums[1][high])
                    place = ((high * 9 + low) * vectors + part) * LANES * 2
                    _store(builder, entry, out, place)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp, tokens), codegen


def _two_columns(builder: Any, base: Any, step: Any, first: int, part: int) -> list[Any]:
    """The nine sums of columns ``first`` and ``first + 1``."""
    zero = constant(VECTOR, 0)
    choices = []
    for index in (first, first + 1):
        address = builder.add(base, builder.mul(step, ir.Constant(_I64, index)))
        column = _load(builder, address, part * LANES * 2, VECTOR)
        choices.append([builder.sub(zero, column), zero, column])
    return [builder.add(low, high) for high in choices[1] for low in choices[0]]


@intrinsic(prefer_literal=True)
def add_rows(typingctx, entries, sums, table, count, tokens):  # type: ignore[no-untyped-def]
    """``sums[n] += sum_g table[g, entries[n, g]]`` for ``count`` rows.

    ``entries`` are uint8 ``[count, 8]``, ``sums`` int16 ``[count, tokens]``, ``table`` int16
    ``[8, 81, tokens]``.
    """
    values = _literals(tokens)
    if values is None:
        return None
    vectors = values[0] // LANES
    size = vectors * LANES * 2

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        with cgutils.for_range(builder, args[3], intp=_I64) as loop:
            source = builder.add(args[0], builder.mul(loop.index, ir.Constant(_I64, BYTES)))
            target = builder.add(args[1], builder.mul(loop.index, ir.Constant(_I64, size)))
            totals = [_load(builder, target, part * LANES * 2, VECTOR) for part in range(vectors)]
            # One load for eight entries: loads are what this loop is short of.
            eight = builder.load(_at(builder, source, 0, _I64))
            eight.align = BYTES
            for group in range(BYTES):
                one = builder.lshr(eight, ir.Constant(_I64, group * 8))
                offset = builder.mul(
                    builder.and_(one, ir.Constant(_I64, 255)), ir.Constant(_I64, size)
                )
                place = builder.add(args[2], offset)
                for part in range(vectors):
                    found = _load(builder, place, group * SUMS * size + part * LANES * 2, VECTOR)
                    totals[part] = builder.add(totals[part], found)
            for part, total in enumerate(totals):
                _store(builder, total, target, part * LANES * 2)
        return context.get_dummy_value()

    addresses = [types.intp] * 4
    return types.void(*addresses, tokens), codegen


@intrinsic(prefer_literal=True)
def widen_rows(typingctx, sums, totals, count):  # type: ignore[no-untyped-def]
    """``totals += sums; sums = 0`` for ``count`` vectors of int16 sums and int32 totals."""

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        wide = Vec("i32", LANES)
        with cgutils.for_range(builder, args[2], intp=_I64) as loop:
            narrow = builder.add(args[0], builder.mul(loop.index, ir.Constant(_I64, LANES * 2)))
            total = builder.add(args[1], builder.mul(loop.index, ir.Constant(_I64, LANES * 4)))
            added = builder.sext(_load(builder, narrow, 0, VECTOR), wide.llvm)
            _store(builder, builder.add(_load(builder, total, 0, wide), added), total, 0)
            _store(builder, constant(VECTOR, 0), narrow, 0)
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp), codegen


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
