"""Brings low-bit weights from the stream layout into the order of ``gemm_tiles.py``.

That is one byte a code, and a dword of every row in turn: a transposition of dwords, which is
done while codes are still packed.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from edgerun.kernels.lang.simd import Vec, constant, declare, pointer

_I32, _I64 = ir.IntType(32), ir.IntType(64)


def literals(*kinds: Any) -> list[Any] | None:
    """Values of literal types, or None while not all are literal."""
    values = [getattr(kind, "literal_value", None) for kind in kinds]
    return None if None in values else values


def address(value: int) -> Any:
    """A constant of the type that addresses have."""
    return ir.Constant(_I64, value)


def load_any(builder: Any, place: Any, kind: Any) -> Any:
    """Loads from any address."""
    value = builder.load(pointer(builder, place, kind))
    value.align = 1
    return value


def prefetch(builder: Any, place: Any) -> None:
    """Asks for the cache line of an address, which need not be valid."""
    kind = ir.IntType(8).as_pointer()
    function = declare(builder, "llvm.prefetch.p0", ir.VoidType(), kind, _I32, _I32, _I32)
    read, keep, data = ir.Constant(_I32, 0), ir.Constant(_I32, 3), ir.Constant(_I32, 1)
    builder.call(function, [builder.inttoptr(place, kind), read, keep, data])


def _shuffle(builder: Any, a: Any, b: Any, index: list[int]) -> Any:
    mask = ir.Constant(ir.VectorType(_I32, len(index)), index)
    return builder.shuffle_vector(a, b, mask)


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
            ab, cd = _shuffle(builder, a, b, index), _shuffle(builder, c, d, index)
            rows[part + lane] = _shuffle(builder, ab, cd, quads)
            rows[part + lane + 1] = _shuffle(builder, ab, cd, [index + 2 for index in quads])
    block = 4
    while block < count:
        lanes = range(count)
        for i in (i for i in lanes if not i & block):
            a, b = rows[i], rows[i + block]
            first = [lane + count - block if lane & block else lane for lane in lanes]
            second = [lane + count if lane & block else lane + block for lane in lanes]
            rows[i] = _shuffle(builder, a, b, first)
            rows[i + block] = _shuffle(builder, a, b, second)
        block *= 2
    return rows


@intrinsic(prefer_literal=True)
def unpack_rows(typingctx, w, row_bytes, row, last, tiles, out, ahead, step_bytes, bits, lanes):  # type: ignore[no-untyped-def]
    """Unpacks ``lanes // 4`` rows of ``tiles`` vectors each, from ``row`` on.

    ``w`` is the address of row 0's first vector. Rows beyond ``last`` are read as ``last``.
    Vectors of codes go to ``out``, ``step_bytes`` apart: for each vector of the rows
    ``lanes // 4`` steps of the lowest ``bits`` bits, then of the next. What lies ``ahead`` bytes
    further is fetched for the next time.
    """
    values = literals(step_bytes, bits, lanes)
    if values is None:
        return None
    stride, size, width = values
    count, planes = width // 4, 8 // size

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        start, row_size, first, limit, number, target, ahead = args[:7]
        rows = []
        for index in range(count):
            wanted = builder.add(first, address(index))
            inside = builder.icmp_signed("<", wanted, limit)
            chosen = builder.select(inside, wanted, limit)
            rows.append(builder.add(start, builder.mul(chosen, row_size)))
        dwords, narrow = Vec("i32", count), Vec("u8", width)
        with cgutils.for_range(builder, number, intp=_I64) as loop:
            offset = builder.mul(loop.index, address(width))
            vectors = [load_any(builder, builder.add(at, offset), dwords.llvm) for at in rows]
            for at in rows:
                prefetch(builder, builder.add(builder.add(at, offset), ahead))
            place = builder.mul(loop.index, address(planes * count * stride))
            place = builder.add(target, place)
            for step, vector in enumerate(transpose(builder, vectors)):
                packed = builder.bitcast(vector, narrow.llvm)
                for plane in range(planes):
                    codes = packed
                    if plane:
                        codes = builder.lshr(codes, constant(narrow, plane * size))
                    if plane < planes - 1:
                        codes = builder.and_(codes, constant(narrow, (1 << size) - 1))
                    at = builder.add(place, address((plane * count + step) * stride))
                    builder.store(codes, pointer(builder, at, narrow.llvm)).align = 1
        return context.get_dummy_value()

    return types.void(*[types.intp] * 7, step_bytes, bits, lanes), codegen
