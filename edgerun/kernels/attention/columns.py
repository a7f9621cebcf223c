"""Scores of many queries, from keys whose tokens lie in the lanes of vectors.

Where keys lie as in the cache, the lanes of a sum have to be added up for every score, which takes
as long as the products. Many queries meet a page: its keys are turned once for all of them, and
lanes are added up for as many tokens as a vector has. Sums and their order are those of
``score_tile`` (``lang/tiles.py``) and ``sum_lanes``, so scores have the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from edgerun.kernels.attention.units import PAGE_TOKENS
from edgerun.kernels.lang.ir import (
    F32,
    I8,
    I64,
    fused,
    integer,
    literals,
    load_from,
    offset,
    shuffle,
    store_to,
)
from edgerun.kernels.lang.simd import Vec, broadcast, constant, load, store
from edgerun.kernels.lang.tiles import ELEMENT_BYTES, load_stored, load_vector

ROW_BYTES = PAGE_TOKENS * 4  # of a page's keys in one dimension
# By lanes: queries of a block, vectors of tokens beside them, and sums of values; what 32 registers
# hold, and 16.
SHAPES = {16: (8, 1, 16), 8: (6, 2, 12)}


@intrinsic(prefer_literal=True)
def _turn(typingctx, source, target, head_dim, dtype, lanes):  # type: ignore[no-untyped-def]
    """Turns ``lanes`` dimensions of ``lanes`` tokens; ``target`` has rows of a page's tokens."""
    values = literals(head_dim, dtype, lanes)
    if values is None:
        return None
    size, stored, width = values

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        row = size * ELEMENT_BYTES[stored]
        places = [offset(builder, args[0], token * row) for token in range(width)]
        rows = [load_stored(builder, place, stored, width) for place in places]
        step = 1
        while step < width:
            for low in [index for index in range(width) if not index & step]:
                pair = rows[low], rows[low + step]
                rows[low], rows[low + step] = _swapped(builder, *pair, step, width)
            step *= 2
        for dimension, value in enumerate(rows):
            store_to(builder, value, offset(builder, args[1], dimension * ROW_BYTES))
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, head_dim, dtype, lanes), codegen


def _swapped(builder: Any, low: Any, high: Any, step: int, width: int) -> tuple[Any, Any]:
    """Two rows of a square that have exchanged blocks of ``step`` lanes across its diagonal."""
    first = [lane if not lane & step else width + lane - step for lane in range(width)]
    second = [lane + step if not lane & step else width + lane for lane in range(width)]
    return shuffle(builder, low, high, first), shuffle(builder, low, high, second)


@njit(inline="always")
def turn_keys(keys, turned, end, head_dim, dtype, size, lanes):  # type: ignore[no-untyped-def]
    """Keys of a page as float32 ``[head_dim, PAGE_TOKENS]``; of tokens from ``end`` on not all."""
    for token in range(0, end, lanes):
        for dimension in range(0, head_dim, lanes):
            source = keys + (token * head_dim + dimension) * size
            _turn(source, turned + dimension * ROW_BYTES + token * 4, head_dim, dtype, lanes)


@njit(inline="always")
def widen_values(values, wide, first, end, head_dim, lanes):  # type: ignore[no-untyped-def]
    """Values of a page's tokens from half precision to float32."""
    for index in range(first * head_dim, end * head_dim, lanes):
        store(wide + index * 4, load(values + index * 2, "f16", lanes))


@intrinsic(prefer_literal=True)
def score_columns(typingctx, q, keys, out, queries, vectors, head_dim, lanes):  # type: ignore[no-untyped-def]
    """``out[m, t] = q[m] . keys[:, t]`` for a few queries and ``vectors`` vectors of tokens.

    ``q`` is float32 ``[queries, head_dim]``, ``keys`` ``[head_dim, PAGE_TOKENS]``, ``out``
    ``[queries, PAGE_TOKENS]``; the last two point to the first token.
    """
    values = literals(queries, vectors, head_dim, lanes)
    if values is None:
        return None
    counts, size, width = values[:2], values[2], values[3]

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        q, keys, out = args[:3]
        cells, fours = counts[0] * counts[1], width // 4
        with builder.goto_entry_block():
            area = builder.ptrtoint(
                builder.alloca(ir.ArrayType(I8, fours * cells * width * 4)), I64
            )
        # A loop, since LLVM would put off all additions and run out of registers.
        with cgutils.for_range(builder, integer(fours), intp=I64) as loop:
            first = builder.shl(loop.index, integer(2))
            columns = _Columns(
                builder,
                builder.add(q, builder.shl(first, integer(2))),
                builder.add(keys, builder.mul(first, integer(ROW_BYTES))),
                counts,
                size,
                width,
            )
            place = builder.add(area, builder.mul(loop.index, integer(cells * width * 4)))
            for cell, total in enumerate(columns.four()):
                store_to(builder, total, offset(builder, place, cell * width * 4))
        for cell in range(cells):
            sums = [
                load_vector(
                    builder, offset(builder, area, (four * cells + cell) * width * 4), "f32", width
                )
                for four in range(fours)
            ]
            while len(sums) > 1:  # as ``sum_lanes`` halves vectors
                half = len(sums) // 2
                halves = zip(sums[:half], sums[half:], strict=True)
                sums = [builder.fadd(low, high) for low, high in halves]
            m, v = divmod(cell, counts[1])
            store_to(builder, sums[0], offset(builder, out, m * ROW_BYTES + v * width * 4))
        return context.get_dummy_value()

    literal = (queries, vectors, head_dim, lanes)
    return types.void(*[types.intp] * 3, *literal), codegen


class _Columns:
    """Emits sums over dimensions, in the order in which ``sum_lanes`` adds lanes up.

    The first of the dimensions is the one that the addresses point to.
    """

    def __init__(
        self, builder: Any, q: Any, keys: Any, counts: Sequence[int], head_dim: int, lanes: int
    ) -> None:
        self.builder, self.q, self.keys = builder, q, keys
        (self.queries, self.vectors), self.head_dim, self.lanes = counts, head_dim, lanes
        self.floats = Vec("f32", lanes)

    def four(self) -> list[Any]:
        """Sums of the first four lanes, for every cell."""
        even = self._add(self._lane(0), self._lane(2))
        return self._add(even, self._add(self._lane(1), self._lane(3)))

    def _add(self, left: list[Any], right: list[Any]) -> list[Any]:
        return [self.builder.fadd(a, b) for a, b in zip(left, right, strict=True)]

    def _lane(self, lane: int) -> list[Any]:
        """Sums over the dimensions that a lane of a row would hold, for every cell."""
        builder, lanes = self.builder, self.lanes
        sums = [constant(self.floats, 0)] * (self.queries * self.vectors)
        for dimension in range(lane, self.head_dim, lanes):
            row = offset(builder, self.keys, dimension * ROW_BYTES)
            keys = [
                load_vector(builder, offset(builder, row, v * lanes * 4), "f32", lanes)
                for v in range(self.vectors)
            ]
            for m in range(self.queries):
                place = offset(builder, self.q, (m * self.head_dim + dimension) * 4)
                query = broadcast(builder, load_from(builder, place, F32), self.floats)
                for v, key in enumerate(keys):
                    cell = m * self.vectors + v
                    sums[cell] = fused(builder, query, key, sums[cell])
        return sums
