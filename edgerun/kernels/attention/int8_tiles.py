"""Register-blocked loops of attention over int8 keys and values: int16 times int8, exact in int32.

In float32 arithmetic would set the pace: converting and multiplying eight elements takes longer
than reading them. So queries and weights are rounded to 16 bits, and pairs of products are added
by one instruction. Sums stay below 2**31 for up to 512 elements a head and 512 tokens a page.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import float32, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

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

CODE_MAX = 32767
SMALLEST = 1e-35  # a largest value below is as good as zero

_I16 = ir.IntType(16)
# ``vpmaddwd`` by int16 lanes; LLVM does not find it by itself. Wider vectors are only asked for
# where the instruction set has them.
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
    name = _PAIR_PRODUCTS.get(a.type.count) if X86 else None
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
        wide = ir.VectorType(_I16, width)
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
                    product = _pair_products(builder, query, keys[t])
                    before = sums.get((m, t))
                    sums[m, t] = product if before is None else builder.add(before, product)
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


@intrinsic(prefer_literal=True)
def weigh_codes(typingctx, p, p_stride, v, pairs, factors, acc, queries, vectors, head_dim, lanes):  # type: ignore[no-untyped-def]
    """``acc[m, :] += factors[m] * sum_t p[m, t] * v[t, :]`` over pairs of tokens.

    ``p`` is int16 with rows ``p_stride`` elements apart, ``v`` int8 ``[2 * pairs, head_dim]``,
    ``factors`` float32 ``[queries]``, ``acc`` float32 ``[queries, head_dim]``; ``v`` and ``acc``
    point to the first of ``vectors * lanes`` columns.
    """
    values = literals(queries, vectors, head_dim, lanes)
    if values is None:
        return None
    m_count, j_count, size, width = values

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        p_base, stride, v_base, count, factor_base, acc_base = args[:6]
        total, floats = Vec("i32", width), Vec("f32", width)
        cells = [(m, j) for m in range(m_count) for j in range(j_count)]
        sums = {cell: variable(builder, constant(total, 0)) for cell in cells}
        with cgutils.for_range(builder, count, intp=I64) as loop:
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
                    product = _pair_products(builder, weights, columns[j])
                    builder.store(builder.add(builder.load(sums[m, j]), product), sums[m, j])
        for m, j in cells:
            factor = load_from(builder, offset(builder, factor_base, m * 4), F32)
            target = offset(builder, acc_base, (m * size + j * width) * 4)
            before = load_vector(builder, target, "f32", width)
            sum_ = builder.sitofp(builder.load(sums[m, j]), floats.llvm)
            after = fused(builder, sum_, broadcast(builder, factor, floats), before)
            store_to(builder, after, target)
        return context.get_dummy_value()

    literal = (queries, vectors, head_dim, lanes)
    return types.void(*[types.intp] * 6, *literal), codegen


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
    for row in range(rows):
        source, target = x + row * width * 4, codes + row * width * 2
        scale = largest(source, width, lanes) / float32(CODE_MAX)
        inverse = float32(1) / scale if scale > float32(SMALLEST) else float32(0)
        every = splat(inverse, "f32", lanes)
        for index in range(0, width, lanes):
            value = round_even(load(source + index * 4, "f32", lanes) * every)
            store(target + index * 2, cast(value, "i16"))
        set_float(factors, row, scale)
