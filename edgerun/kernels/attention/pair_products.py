"""Both products of attention by dot products of pairs of bfloat16, 32 queries at a time.

They take the operands of ``tile_products.py`` as those lie: a line of a tile has a pair of each of
16 queries, or of their weights, and a pair of a key's or of values meets all of them. Eight keys,
or values of eight dimensions, have their sums with 32 queries in 16 registers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from edgerun.kernels.attention.tile_products import DEPTH, QUERIES, score_tiles, weigh_tiles
from edgerun.kernels.attention.units import DEEP, PAGE_TOKENS
from edgerun.kernels.lang.bfloat16 import BFLOAT16, FLOATS, WORDS
from edgerun.kernels.lang.ir import (
    I32,
    I64,
    integer,
    literals,
    load_from,
    offset,
    store_to,
    variable,
)
from edgerun.kernels.lang.simd import broadcast, constant
from edgerun.kernels.lang.tile_registers import (
    LINE,
    SIDE,
    TILE_BYTES,
    TILES,
    configure_tiles,
    release_tiles,
)

ROWS = 8  # of keys or values whose sums with 32 queries are in registers
AT_ONCE = 4  # pairs that are multiplied in a turn of the innermost loop
HALVES = QUERIES // SIDE


@intrinsic(prefer_literal=True)
def score_pairs(typingctx, keys, queries, scores, end, head_dim, multiplier):  # type: ignore[no-untyped-def]
    """``score_tiles`` by dot products; ``end`` is rounded up to a multiple of 8."""
    values = literals(head_dim, multiplier)
    if values is None:
        return None
    size, name = values

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        groups = builder.lshr(builder.add(args[3], integer(ROWS - 1)), integer(3))
        with cgutils.for_range(builder, groups, intp=I64) as loop:
            keys = builder.add(args[0], builder.mul(loop.index, integer(ROWS * size * 2)))
            out = builder.add(args[2], builder.mul(loop.index, integer(ROWS * QUERIES * 4)))
            sums = [variable(builder, constant(FLOATS, 0)) for _ in range(ROWS * HALVES)]
            with cgutils.for_range(builder, integer(size // 2 // AT_ONCE), intp=I64) as step:
                words = builder.add(keys, builder.mul(step.index, integer(4 * AT_ONCE)))
                lines = builder.add(args[1], builder.mul(step.index, integer(LINE * AT_ONCE)))
                places = [offset(builder, words, row * size * 2) for row in range(ROWS)]
                halves = [offset(builder, lines, half * size * SIDE * 2) for half in range(HALVES)]
                _multiply(builder, name, sums, places, halves)
            for index, total in enumerate(sums):
                row, half = divmod(index, HALVES)
                place = offset(builder, out, row * QUERIES * 4 + half * LINE)
                store_to(builder, builder.load(total), place)
        return context.get_dummy_value()

    return types.void(*[types.intp] * 4, head_dim, multiplier), codegen


@intrinsic(prefer_literal=True)
def weigh_pairs(typingctx, values, weights, out, end, head_dim, multiplier):  # type: ignore[no-untyped-def]
    """``weigh_tiles`` by dot products; ``end`` is rounded up to a multiple of 8."""
    constants = literals(head_dim, multiplier)
    if constants is None:
        return None
    size, name = constants
    steps = PAGE_TOKENS // DEEP
    a_tile = DEPTH // 4 // AT_ONCE  # turns of the innermost loop

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        count = builder.lshr(builder.add(args[3], integer(2 * AT_ONCE - 1)), integer(3))
        with cgutils.for_range(builder, integer(size // ROWS), intp=I64) as loop:
            part = builder.lshr(loop.index, integer(1))  # of 16 dimensions
            upper = builder.and_(loop.index, integer(1))
            rows = builder.add(
                builder.mul(part, integer(steps * TILE_BYTES)),
                builder.mul(upper, integer(ROWS * LINE)),
            )
            values = builder.add(args[0], rows)
            first = builder.add(args[2], builder.mul(loop.index, integer(ROWS * LINE)))
            cells = [
                offset(builder, first, half * size * LINE + row * LINE)
                for row in range(ROWS)
                for half in range(HALVES)
            ]
            sums = [variable(builder, load_from(builder, cell, FLOATS.llvm)) for cell in cells]
            with cgutils.for_range(builder, count, intp=I64) as step:
                tile = builder.udiv(step.index, integer(a_tile))
                place = builder.urem(step.index, integer(a_tile))
                at = builder.add(
                    builder.mul(tile, integer(TILE_BYTES)),
                    builder.mul(place, integer(4 * AT_ONCE)),
                )
                words = builder.add(values, at)
                lines = builder.add(args[1], builder.mul(step.index, integer(LINE * AT_ONCE)))
                places = [offset(builder, words, row * LINE) for row in range(ROWS)]
                halves = [
                    offset(builder, lines, half * steps * TILE_BYTES) for half in range(HALVES)
                ]
                _multiply(builder, name, sums, places, halves)
            for cell, total in zip(cells, sums, strict=True):
                store_to(builder, builder.load(total), cell)
        return context.get_dummy_value()

    return types.void(*[types.intp] * 4, head_dim, multiplier), codegen


def _multiply(
    builder: Any, name: str, sums: Sequence[Any], rows: Sequence[Any], halves: Sequence[Any]
) -> None:
    """Adds products of a few words of each row and as many lines of queries."""
    bfloat16 = BFLOAT16[name](builder)
    for pair in range(AT_ONCE):
        lines = [
            load_from(builder, offset(builder, half, pair * LINE), WORDS.llvm) for half in halves
        ]
        for index, row in enumerate(rows):
            word = load_from(builder, offset(builder, row, pair * 4), I32)
            both = broadcast(builder, word, WORDS)
            for half, line in enumerate(lines):
                total = sums[index * HALVES + half]
                builder.store(bfloat16.with_products(builder.load(total), line, both), total)


class Products(NamedTuple):
    """What multiplies keys, values, queries and weights of a page: functions for kernels.

    Attributes:
        begin: takes what the others need.
        score: ``score_tiles(keys, queries, scores, end)``, or ``score_pairs``.
        weigh: ``weigh_tiles(values, weights, out, end)``, or ``weigh_pairs``.
        end: gives that up.
    """

    begin: Callable[..., None]
    score: Callable[..., None]
    weigh: Callable[..., None]
    end: Callable[..., None]


def products_of(multiplier: str, head_dim: int) -> Products:
    """Those by tiles, or by pairs where there are none."""
    if multiplier not in TILES:
        return _by_pairs(multiplier, head_dim)

    @njit(inline="always")
    def begin():  # type: ignore[no-untyped-def]
        configure_tiles(DEPTH, multiplier)

    @njit(inline="always")
    def score(keys, queries, scores, end):  # type: ignore[no-untyped-def]
        score_tiles(keys, queries, scores, end, head_dim, multiplier)

    @njit(inline="always")
    def weigh(values, weights, out, end):  # type: ignore[no-untyped-def]
        weigh_tiles(values, weights, out, end, head_dim, multiplier)

    @njit(inline="always")
    def end():  # type: ignore[no-untyped-def]
        release_tiles(DEPTH, multiplier)

    return Products(begin, score, weigh, end)


def _by_pairs(multiplier: str, head_dim: int) -> Products:
    @njit(inline="always")
    def nothing():  # type: ignore[no-untyped-def]
        pass

    @njit(inline="always")
    def score(keys, queries, scores, end):  # type: ignore[no-untyped-def]
        score_pairs(keys, queries, scores, end, head_dim, multiplier)

    @njit(inline="always")
    def weigh(values, weights, out, end):  # type: ignore[no-untyped-def]
        weigh_pairs(values, weights, out, end, head_dim, multiplier)

    return Products(nothing, score, weigh, nothing)
