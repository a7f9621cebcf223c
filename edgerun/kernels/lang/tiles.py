"""Register-blocked inner loops, emitted as LLVM IR.

Numba cannot keep an array of vectors in registers, so these loops build their accumulators
while the code is generated: sizes are compile-time constants, and Python loops unroll.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from edgerun.kernels.lang.ir import (
    F32,
    I32,
    I64,
    fused,
    integer,
    literals,
    load_from,
    offset,
    shuffle,
    store_to,
    variable,
)
from edgerun.kernels.lang.simd import ELEMENTS, Vec, broadcast, constant

STORED = {"fp32": "f32", "fp16": "f16", "int8": "i8"}
ELEMENT_BYTES = {"fp32": 4, "fp16": 2, "int8": 1}


def load_vector(builder: Any, address: Any, element: str, lanes: int) -> Any:
    """Loads a vector from any address."""
    return load_from(builder, address, Vec(element, lanes).llvm)


def load_stored(builder: Any, address: Any, dtype: str, lanes: int) -> Any:
    """Loads cache elements as float32."""
    value = load_vector(builder, address, STORED[dtype], lanes)
    wide = Vec("f32", lanes).llvm
    if dtype == "fp16":
        return builder.fpext(value, wide)
    return builder.sitofp(value, wide) if dtype == "int8" else value


def sum_lanes(builder: Any, vectors: list[Any], lanes: int) -> list[Any]:
    """The sum of each vector's lanes; the number of vectors is a multiple of 4.

    Four sums come in a vector of 4 lanes: shuffling vectors together while they are added takes
    half the instructions of reducing each by itself. The order of additions depends on the
    number of lanes alone.
    """
    add = builder.fadd if vectors[0].type.element == F32 else builder.add

    def pair(a: Any, b: Any, *places: tuple[int, int]) -> Any:
        """Adds two lanes of every four of ``a``, then of ``b``, to the other two."""
        starts = [(four, vector) for four in range(0, lanes, 4) for vector in (0, lanes)]
        return add(
            *(
                shuffle(builder, a, b, [f + v + lane for f, v in starts for lane in lanes_of])
                for lanes_of in places
            )
        )

    def fold(vector: Any, size: int) -> Any:
        """Adds the upper half to the lower one until 4 lanes are left."""
        while size > 4:
            size //= 2
            low, high = range(size), range(size, 2 * size)
            vector = add(*(shuffle(builder, vector, vector, half) for half in (low, high)))
        return vector

    if lanes < 4:
        return [
            _sum_singly(builder, add, vectors[n : n + 4], lanes) for n in range(0, len(vectors), 4)
        ]
    for places in (((0, 1), (2, 3)), ((0, 2), (1, 3))):
        vectors = [pair(a, b, *places) for a, b in zip(vectors[::2], vectors[1::2], strict=True)]
    return [fold(vector, lanes) for vector in vectors]


def _sum_singly(builder: Any, add: Any, vectors: list[Any], lanes: int) -> Any:
    result = ir.Constant(ir.VectorType(vectors[0].type.element, len(vectors)), ir.Undefined)
    for place, vector in enumerate(vectors):
        total = builder.extract_element(vector, ir.Constant(I32, 0))
        for lane in range(1, lanes):
            total = add(total, builder.extract_element(vector, ir.Constant(I32, lane)))
        result = builder.insert_element(result, total, ir.Constant(I32, place))
    return result


def store_scores(
    builder: Any, sums: list[Any], place: Any, stride: Any, shape: tuple[int, int]
) -> None:
    """Stores sums of ``sum_lanes``, ordered by query and token, to ``place[query, token]``."""
    queries, tokens = shape
    width = min(tokens, 4)
    for cell in range(0, queries * tokens, width):
        row = builder.add(place, builder.mul(stride, integer(cell // tokens * 4)))
        total, first = sums[cell // 4], cell % 4
        part = shuffle(builder, total, total, range(first, first + width))
        store_to(builder, part, offset(builder, row, cell % tokens * 4))


@intrinsic(prefer_literal=True)
def scratch(typingctx, size):  # type: ignore[no-untyped-def]
    """Address of ``size`` uninitialised bytes on the stack, aligned to a cache line."""
    values = literals(size)
    if values is None:
        return None

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        # Not alloca_once: it also writes zeros, which takes minutes to compile at this size.
        with builder.goto_entry_block():
            area = builder.alloca(ir.ArrayType(ELEMENTS["i8"], values[0]))
        area.align = 64
        return builder.ptrtoint(area, I64)

    return types.intp(size), codegen


@intrinsic(prefer_literal=True)
def score_tile(typingctx, q, k, out, out_stride, queries, tokens, head_dim, dtype, lanes):  # type: ignore[no-untyped-def]
    """``out[m, t] = q[m] . k[t]`` for a few queries and tokens, in all a multiple of 4.

    ``q`` is float32 ``[queries, head_dim]``, ``k`` ``[tokens, head_dim]`` of the cache's type,
    ``out`` float32 with rows ``out_stride`` elements apart.
    """
    values = literals(queries, tokens, head_dim, dtype, lanes)
    if values is None:
        return None
    m_count, t_count, size, stored, width = values

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        q_base, k_base, out_base, stride = args[:4]
        sums: dict[tuple[int, int], Any] = {}
        zero = constant(Vec("f32", width), 0)
        for d in range(0, size, width):
            qs = [
                load_vector(builder, offset(builder, q_base, (m * size + d) * 4), "f32", width)
                for m in range(m_count)
            ]
            for t in range(t_count):
                place = offset(builder, k_base, (t * size + d) * ELEMENT_BYTES[stored])
                key = load_stored(builder, place, stored, width)
                for m in range(m_count):
                    sums[m, t] = fused(builder, qs[m], key, sums.get((m, t), zero))
        cells = [sums[m, t] for m in range(m_count) for t in range(t_count)]
        totals = sum_lanes(builder, cells, width)
        store_scores(builder, totals, out_base, stride, (m_count, t_count))
        return context.get_dummy_value()

    signature = types.void(
        types.intp, types.intp, types.intp, types.intp, queries, tokens, head_dim, dtype, lanes
    )
    return signature, codegen


@intrinsic(prefer_literal=True)
def weigh_tile(typingctx, p, p_stride, v, count, acc, queries, vectors, head_dim, dtype, lanes):  # type: ignore[no-untyped-def]
    """``acc[m, :] += sum_t p[m, t] * v[t, :]`` for a few queries and ``vectors`` vectors.

    ``p`` is float32 with rows ``p_stride`` elements apart, ``v`` ``[count, head_dim]`` of the
    cache's type, ``acc`` float32 ``[queries, head_dim]``; both point to the first column.
    """
    values = literals(queries, vectors, head_dim, dtype, lanes)
    if values is None:
        return None
    m_count, j_count, size, stored, width = values
    row_bytes = size * ELEMENT_BYTES[stored]

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        p_base, stride, v_base, tokens, acc_base = args[:5]
        vec = Vec("f32", width)
        cells = [(m, j) for m in range(m_count) for j in range(j_count)]
        places = {
            cell: offset(builder, acc_base, (cell[0] * size + cell[1] * width) * 4)
            for cell in cells
        }
        sums = {
            cell: variable(builder, load_vector(builder, place, "f32", width))
            for cell, place in places.items()
        }
        with cgutils.for_range(builder, tokens, intp=I64) as loop:
            row = builder.add(v_base, builder.mul(loop.index, integer(row_bytes)))
            step = width * ELEMENT_BYTES[stored]
            vs = [
                load_stored(builder, offset(builder, row, j * step), stored, width)
                for j in range(j_count)
            ]
            for m in range(m_count):
                index = builder.add(loop.index, builder.mul(stride, integer(m)))
                place = builder.add(p_base, builder.shl(index, integer(2)))
                weight = broadcast(builder, load_from(builder, place, F32), vec)
                for j in range(j_count):
                    total = fused(builder, weight, vs[j], builder.load(sums[m, j]))
                    builder.store(total, sums[m, j])
        for cell in cells:
            store_to(builder, builder.load(sums[cell]), places[cell])
        return context.get_dummy_value()

    literal = (queries, vectors, head_dim, dtype, lanes)
    return types.void(*[types.intp] * 5, *literal), codegen
