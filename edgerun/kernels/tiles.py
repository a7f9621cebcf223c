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

from edgerun.kernels.simd import ELEMENTS, Vec, broadcast, declare, pointer

_I64 = ir.IntType(64)
_F32 = ir.FloatType()
STORED = {"fp32": "f32", "fp16": "f16", "int8": "i8"}
ELEMENT_BYTES = {"fp32": 4, "fp16": 2, "int8": 1}


def _literals(*kinds: Any) -> list[Any] | None:
    values = [getattr(kind, "literal_value", None) for kind in kinds]
    return None if None in values else values


def _offset(builder: Any, address: Any, offset: int) -> Any:
    return builder.add(address, ir.Constant(_I64, offset)) if offset else address


def _load(builder: Any, address: Any, element: str, lanes: int) -> Any:
    value = builder.load(pointer(builder, address, Vec(element, lanes).llvm))
    value.align = 1
    return value


def load_stored(builder: Any, address: Any, dtype: str, lanes: int) -> Any:
    """Loads cache elements as float32."""
    value = _load(builder, address, STORED[dtype], lanes)
    wide = Vec("f32", lanes).llvm
    if dtype == "fp16":
        return builder.fpext(value, wide)
    return builder.sitofp(value, wide) if dtype == "int8" else value


def _fma(builder: Any, a: Any, b: Any, c: Any, lanes: int) -> Any:
    kind = Vec("f32", lanes).llvm
    return builder.call(declare(builder, f"llvm.fmuladd.v{lanes}f32", kind, *[kind] * 3), [a, b, c])


def _sum_lanes(builder: Any, vector: Any, lanes: int) -> Any:
    name = f"llvm.vector.reduce.fadd.v{lanes}f32"
    call = builder.call(
        declare(builder, name, _F32, _F32, vector.type), [ir.Constant(_F32, -0.0), vector]
    )
    call.fastmath.add("reassoc")
    return call


@intrinsic(prefer_literal=True)
def scratch(typingctx, size):  # type: ignore[no-untyped-def]
    """Address of ``size`` uninitialised bytes on the stack, aligned to a cache line."""
    values = _literals(size)
    if values is None:
        return None

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        # Not alloca_once: it also writes zeros, which takes minutes to compile at this size.
        with builder.goto_entry_block():
            area = builder.alloca(ir.ArrayType(ELEMENTS["i8"], values[0]))
        area.align = 64
        return builder.ptrtoint(area, _I64)

    return types.intp(size), codegen


@intrinsic(prefer_literal=True)
def score_tile(typingctx, q, k, out, out_stride, queries, tokens, head_dim, dtype, lanes):  # type: ignore[no-untyped-def]
    """``out[m, t] = q[m] . k[t]`` for a few queries and tokens.

    ``q`` is float32 ``[queries, head_dim]``, ``k`` ``[tokens, head_dim]`` of the cache's type,
    ``out`` float32 with rows ``out_stride`` elements apart.
    """
    values = _literals(queries, tokens, head_dim, dtype, lanes)
    if values is None:
        return None
    m_count, t_count, size, stored, width = values

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        q_base, k_base, out_base, stride = args[:4]
        sums: dict[tuple[int, int], Any] = {}
        zero = ir.Constant(Vec("f32", width).llvm, [0.0] * width)
        for d in range(0, size, width):
            qs = [
                _load(builder, _offset(builder, q_base, (m * size + d) * 4), "f32", width)
                for m in range(m_count)
            ]
            for t in range(t_count):
                place = _offset(builder, k_base, (t * size + d) * ELEMENT_BYTES[stored])
                key = load_stored(builder, place, stored, width)
                for m in range(m_count):
                    sums[m, t] = _fma(builder, qs[m], key, sums.get((m, t), zero), width)
        for m in range(m_count):
            row = builder.add(out_base, builder.mul(stride, ir.Constant(_I64, m * 4)))
            for t in range(t_count):
                target = pointer(builder, _offset(builder, row, t * 4), _F32)
                builder.store(_sum_lanes(builder, sums[m, t], width), target)
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
    values = _literals(queries, vectors, head_dim, dtype, lanes)
    if values is None:
        return None
    m_count, j_count, size, stored, width = values
    row_bytes = size * ELEMENT_BYTES[stored]

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        p_base, stride, v_base, tokens, acc_base = args[:5]
        vec = Vec("f32", width)
        cells = [(m, j) for m in range(m_count) for j in range(j_count)]
        places = {
            cell: _offset(builder, acc_base, (cell[0] * size + cell[1] * width) * 4)
            for cell in cells
        }
        sums = {cell: cgutils.alloca_once(builder, vec.llvm) for cell in cells}
        for cell in cells:
            builder.store(_load(builder, places[cell], "f32", width), sums[cell])
        with cgutils.for_range(builder, tokens, intp=_I64) as loop:
            row = builder.add(v_base, builder.mul(loop.index, ir.Constant(_I64, row_bytes)))
            step = width * ELEMENT_BYTES[stored]
            vs = [
                load_stored(builder, _offset(builder, row, j * step), stored, width)
                for j in range(j_count)
            ]
            for m in range(m_count):
                index = builder.add(loop.index, builder.mul(stride, ir.Constant(_I64, m)))
                place = builder.add(p_base, builder.shl(index, ir.Constant(_I64, 2)))
                weight = broadcast(builder, builder.load(pointer(builder, place, _F32)), vec)
                for j in range(j_count):
                    total = _fma(builder, weight, vs[j], builder.load(sums[m, j]), width)
                    builder.store(total, sums[m, j])
        for cell in cells:
            builder.store(
                builder.load(sums[cell]), pointer(builder, places[cell], vec.llvm)
            ).align = 1
        return context.get_dummy_value()

    signature = types.void(
        types.intp,
        types.intp,
        types.intp,
        types.intp,
        types.intp,
        queries,
        vectors,
        head_dim,
        dtype,
        lanes,
    )
    return signature, codegen
