"""Register-blocked loops of attention over int8 keys and values: int16 times int8, exact in int32.

In float32 arithmetic would set the pace: converting and multiplying eight elements takes longer
than reading them. So queries and weights are rounded to 16 bits, and pairs of products are added
by one instruction. Sums of 512 products stay below 2**31; longer rows are rounded to less.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import float32, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from edgerun.kernels.attention.units import cache_of_pages
from edgerun.kernels.jit.target import host
from edgerun.kernels.lang.dot import ARM64, X86
from edgerun.kernels.lang.ir import (
    F32,
    I32,
    I64,
    declare,
    fused,
    integer,
    literals,
    load_from,
    offset,
    prefetch_line,
    shuffle,
    store_to,
    variable,
)
from edgerun.kernels.lang.neon import pair_products
from edgerun.kernels.lang.simd import (
    Vec,
    broadcast,
    cast,
    constant,
    load,
    round_even,
    splat,
    store,
)
from edgerun.kernels.lang.tiles import load_vector, store_scores, sum_lanes
from edgerun.kernels.lang.word import set_float
from edgerun.kernels.pointwise.quantize import largest

CODE_MAX, LINE = 32767, 64
TURNED_TOKENS, TURNED_DIMENSIONS = 16, 64  # of keys that are turned together
FULL_WIDTH = 512  # products by int8 whose sum int32 holds, whatever they are
SMALLEST = 1e-35  # a largest value below is as good as zero

_I16 = ir.IntType(16)
# ``vpmaddwd`` by int16 lanes; LLVM does not find it by itself. Vectors of 64 bytes are asked for by
# instruction sets that have them, and by models of such, on machines that have not.
_PAIR_PRODUCTS = {
    8: "llvm.x86.sse2.pmadd.wd",
    16: "llvm.x86.avx2.pmadd.wd",
    32: "llvm.x86.avx512.pmaddw.d.512",
}


def _every_other(builder: Any, vector: Any, first: int) -> Any:
    half = shuffle(builder, vector, vector, range(first, vector.type.count, 2))
    return builder.sext(half, ir.VectorType(I32, half.type.count))


def _pair_products(builder: Any, a: Any, b: Any) -> Any:
    """Products of int16 lanes, added in pairs to int32."""
    is_there = X86 and (a.type.count < 32 or "+avx512bw" in host()[2].split(","))
    name = _PAIR_PRODUCTS.get(a.type.count) if is_there else None
    if name is not None:
        kind = ir.VectorType(I32, a.type.count // 2)
        return builder.call(declare(builder, name, kind, a.type, a.type), [a, b])
    if ARM64 and a.type.count == 8:
        return pair_products(builder, a, b)
    even, odd = (
        builder.mul(_every_other(builder, a, first), _every_other(builder, b, first))
        for first in (0, 1)
    )
    return builder.add(even, odd)


def _plus_pair_products(builder: Any, total: Any, a: Any, b: Any) -> Any:
    """``total`` plus ``_pair_products``: by one instruction (``vpdpwssd``) where vectors are wide.

    It is assembly because LLVM makes two instructions of it where sums wait for each other.
    """
    if X86 and a.type.count == 32 and "+avx512vnni" in host()[2].split(","):
        kind = ir.FunctionType(total.type, [total.type, a.type, b.type])
        return builder.asm(kind, "vpdpwssd $3, $2, $0", "=v,0,v,v", [total, a, b], False)
    return builder.add(total, _pair_products(builder, a, b))


@intrinsic(prefer_literal=True)
def score_codes(typingctx, q, k, out, out_stride, queries, tokens, head_dim, lanes):  # type: ignore[no-untyped-def]
    """``out[m, t] = q[m] . k[t]`` as float32 for a few queries and tokens, a multiple of 4.

    ``q`` is int16 ``[queries, head_dim]``, ``k`` int8 ``[tokens, head_dim]``, ``out`` float32 with
    rows ``out_stride`` elements apart; ``lanes`` int16 are multiplied at a time.
    """
    values = literals(queries, tokens, head_dim, lanes)
    if values is None:
        return None
    m_count, t_count, size, width = values

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        q_base, k_base, out_base, stride = args[:4]
        sums: dict[tuple[int, int], Any] = {}
        wide, zero = ir.VectorType(_I16, width), constant(Vec("i32", width // 2), 0)
        for d in range(0, size, width):
            keys = [
                builder.sext(
                    load_vector(builder, offset(builder, k_base, t * size + d), "i8", width), wide
                )
                for t in range(t_count)
            ]
            for m in range(m_count):
                place = offset(builder, q_base, (m * size + d) * 2)
                query = load_vector(builder, place, "i16", width)
                for t in range(t_count):
                    before = sums.get((m, t), zero)
                    sums[m, t] = _plus_pair_products(builder, before, query, keys[t])
        cells = [sums[m, t] for m in range(m_count) for t in range(t_count)]
        totals = [
            builder.sitofp(total, ir.VectorType(F32, 4))
            for total in sum_lanes(builder, cells, width // 2)
        ]
        store_scores(builder, totals, out_base, stride, (m_count, t_count))
        return context.get_dummy_value()

    signature = types.void(
        types.intp, types.intp, types.intp, types.intp, queries, tokens, head_dim, lanes
    )
    return signature, codegen


def _quarters(places: tuple[int, ...]) -> list[int]:
    """The same places in each quarter of 16 elements."""
    return [quarter + place for quarter in range(0, 16, 4) for place in places]


def _turned(builder: Any, rows: list[Any]) -> list[list[Any]]:
    """16 vectors of 16 int32, turned: four lists, the j-th of which has columns j, j + 4, ...

    Fours of rows are turned in each quarter of a vector, then the quarters.
    """
    fours = []
    for four in range(0, 16, 4):
        low, high = (_quarters(places) for places in ((0, 16, 1, 17), (2, 18, 3, 19)))
        pairs = [
            shuffle(builder, rows[first], rows[first + 1], half)
            for first in (four, four + 2)
            for half in (low, high)
        ]
        even, odd = (_quarters(places) for places in ((0, 1, 16, 17), (2, 3, 18, 19)))
        fours.append(
            [
                shuffle(builder, pairs[half], pairs[half + 2], places)
                for half in (0, 1)
                for places in (even, odd)
            ]
        )
    even, odd = (
        [quarter + n for quarter in range(first, 32, 8) for n in range(4)] for first in (0, 4)
    )
    columns = []
    for j in range(4):
        parts = [
            [shuffle(builder, fours[g][j], fours[g + 1][j], places) for g in (0, 2)]
            for places in (even, odd)
        ]
        columns.append(
            [
                shuffle(builder, parts[half][0], parts[half][1], places)
                for places in (even, odd)
                for half in (0, 1)
            ]
        )
    return columns


def _kept(builder: Any, vector: Any) -> Any:
    """The same vector, of which LLVM does not know where it comes from.

    Or it would make one sum of two, and wait for every product before the next.
    """
    return builder.asm(ir.FunctionType(vector.type, [vector.type]), "", "=v,0", [vector], False)


@intrinsic(prefer_literal=True)
def score_turned(typingctx, q, k, out, out_stride, ahead, queries, head_dim, asked):  # type: ignore[no-untyped-def]
    """``score_codes`` for 16 tokens, whose sums then lie side by side in the lanes of a vector.

    ``q`` is as ``swap_middle`` leaves it, ``head_dim`` a multiple of 64. With every four
    dimensions ``asked`` bytes are asked for, at most a line, from ``ahead`` on.
    """
    values = literals(queries, head_dim, asked)
    if values is None:
        return None
    m_count, size, asked_bytes = values

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        q_base, k_base, out_base, stride, ahead = args[:5]
        words, eight = ir.VectorType(_I16, 32), constant(Vec("i16", 32), 8)
        zero = constant(Vec("i32", 16), 0)
        sums: dict[tuple[int, int], Any] = {}
        step = 0
        for d in range(0, size, TURNED_DIMENSIONS):
            rows = [
                load_vector(builder, offset(builder, k_base, t * size + d), "i32", 16)
                for t in range(16)
            ]
            for j, columns in enumerate(_turned(builder, rows)):
                for n, column in enumerate(columns):
                    prefetch_line(
                        builder, offset(builder, ahead, step * asked_bytes), cache_of_pages()
                    )
                    step += 1
                    codes = builder.bitcast(column, words)
                    low = builder.ashr(builder.shl(codes, eight), eight)
                    for part, keys in enumerate((low, builder.ashr(codes, eight))):
                        for m in range(m_count):
                            at = (m * size + d + 16 * n + 4 * j + 2 * part) * 2
                            query = _pair_of_weights(builder, offset(builder, q_base, at), 16)
                            before = sums.get((m, part), zero)
                            sums[m, part] = _plus_pair_products(builder, before, query, keys)
        for m in range(m_count):
            total = builder.add(_kept(builder, sums[m, 0]), sums[m, 1])
            total = builder.sitofp(total, Vec("f32", 16).llvm)
            row = builder.add(out_base, builder.mul(stride, integer(m * 4)))
            store_to(builder, total, row)
        return context.get_dummy_value()

    return types.void(*[types.intp] * 5, queries, head_dim, asked), codegen


@intrinsic(prefer_literal=True)
def _swap_middle(typingctx, address):  # type: ignore[no-untyped-def]
    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        value = load_vector(builder, args[0], "i16", 16)
        places = [four + n for four in range(0, 16, 4) for n in (0, 2, 1, 3)]
        store_to(builder, shuffle(builder, value, value, places), args[0])
        return context.get_dummy_value()

    return types.void(types.intp), codegen


@njit(inline="always")
def swap_middle(codes, count):  # type: ignore[no-untyped-def]
    """Of every four int16 swaps the second and the third, so that pairs are even and odd bytes."""
    for index in range(0, count, 16):
        _swap_middle(codes + index * 2)


@intrinsic(prefer_literal=True)
def weigh_codes(  # type: ignore[no-untyped-def]
    typingctx, p, p_stride, v, pairs, factors, acc, ahead, queries, vectors, head_dim, lanes, asked
):
    """``acc[m, :] += factors[m] * sum_t p[m, t] * v[t, :]`` over pairs of tokens.

    ``p`` is int16 with rows ``p_stride`` elements apart, ``v`` int8 ``[2 * pairs, head_dim]``,
    ``factors`` float32 ``[queries]``, ``acc`` float32 ``[queries, head_dim]``; ``v`` and ``acc``
    point to the first of ``vectors * lanes`` columns. With every pair ``asked`` bytes from
    ``ahead`` on are asked for.
    """
    values = literals(queries, vectors, head_dim, lanes, asked)
    if values is None:
        return None
    m_count, j_count, size, width, asked_bytes = values

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        p_base, stride, v_base, count, factor_base, acc_base, ahead = args[:7]
        total, floats = Vec("i32", width), Vec("f32", width)
        cells = [(m, j) for m in range(m_count) for j in range(j_count)]
        sums = {cell: variable(builder, constant(total, 0)) for cell in cells}
        with cgutils.for_range(builder, count, intp=I64) as loop:
            line = builder.add(ahead, builder.mul(loop.index, integer(asked_bytes)))
            for place in range(0, asked_bytes, LINE):
                prefetch_line(builder, offset(builder, line, place), cache_of_pages())
            row = builder.add(v_base, builder.mul(loop.index, integer(2 * size)))
            first, second = (
                load_vector(builder, offset(builder, row, at), "i8", j_count * width)
                for at in (0, size)
            )
            columns = [_columns(builder, first, second, j, width, j_count) for j in range(j_count)]
            for m in range(m_count):
                index = builder.add(
                    builder.shl(loop.index, integer(1)),
                    builder.mul(stride, integer(m)),
                )
                place = builder.add(p_base, builder.shl(index, integer(1)))
                weights = _pair_of_weights(builder, place, width)
                for j in range(j_count):
                    before = builder.load(sums[m, j])
                    after = _plus_pair_products(builder, before, weights, columns[j])
                    builder.store(after, sums[m, j])
        for m, j in cells:
            factor = load_from(builder, offset(builder, factor_base, m * 4), F32)
            target = offset(builder, acc_base, (m * size + j * width) * 4)
            before = load_vector(builder, target, "f32", width)
            sum_ = builder.sitofp(builder.load(sums[m, j]), floats.llvm)
            after = fused(builder, sum_, broadcast(builder, factor, floats), before)
            store_to(builder, after, target)
        return context.get_dummy_value()

    literal = (queries, vectors, head_dim, lanes, asked)
    return types.void(*[types.intp] * 7, *literal), codegen


def _pair_of_weights(builder: Any, place: Any, width: int) -> Any:
    """Two int16 at an address, ``width`` times over."""
    every = broadcast(builder, load_from(builder, place, I32), Vec("i32", width))
    return builder.bitcast(every, ir.VectorType(_I16, 2 * width))


def _columns(builder: Any, first: Any, second: Any, part: int, width: int, parts: int) -> Any:
    """Elements of two rows side by side, as int16: ``width`` columns from ``part * width`` on."""
    index = [part * width + lane + row for lane in range(width) for row in (0, parts * width)]
    mixed = shuffle(builder, first, second, index)
    return builder.sext(mixed, ir.VectorType(_I16, 2 * width))


@njit(inline="always")
def round_rows(x, codes, factors, rows, width, lanes):  # type: ignore[no-untyped-def]
    """Rounds float32 ``[rows, width]`` to int16; a row is its codes times its factor."""
    most = float32(min(CODE_MAX, CODE_MAX * FULL_WIDTH // width))
    for row in range(rows):
        source, target = x + row * width * 4, codes + row * width * 2
        scale = largest(source, width, lanes) / most
        inverse = float32(1) / scale if scale > float32(SMALLEST) else float32(0)
        every = splat(inverse, "f32", lanes)
        for index in range(0, width, lanes):
            value = round_even(load(source + index * 4, "f32", lanes) * every)
            store(target + index * 2, cast(value, "i16"))
        set_float(factors, row, scale)
