"""Both products of attention by tiles of bfloat16, 32 queries at a time.

Queries lie in the columns of tiles, so that a vector has a score of each of 16 queries: scores are
``keys * queries``, ``[tokens, 32]``, and outputs ``values * weights``, ``[head_dim, 32]``.
Registers 0 to 3 are sums, 4 and 5 keys or values, 6 and 7 queries or weights.

Operands are bfloat16 in pairs, as tiles want them:
queries ``[16 of them][32 dimensions][pair of dimensions, query]``, keys ``[token, head_dim]``,
weights ``[16 queries][32 tokens][pair of tokens, query]``,
values ``[16 dimensions][32 tokens][dimension, token]``. Each ``[...][...]`` is a tile of 1 KB.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from edgerun.kernels.attention.units import DEEP, PAGE_TOKENS
from edgerun.kernels.lang.ir import I64, integer, literals, load_from, offset, shuffle, store_to
from edgerun.kernels.lang.simd import Vec
from edgerun.kernels.lang.tile_registers import (
    CODES,
    LINE,
    SIDE,
    SUMS,
    TILE_BYTES,
    TILES,
    TileRegisters,
    X,
)

DEPTH = 64  # bytes of a row: 32 bfloat16
QUERIES = 32  # that are multiplied together
SCORES_BYTES = PAGE_TOKENS * QUERIES * 4
WEIGHTS_BYTES = PAGE_TOKENS * QUERIES * 2
CELLS = [(row, column, SUMS[2 * row + column]) for row in range(2) for column in range(2)]


@intrinsic(prefer_literal=True)
def score_tiles(typingctx, keys, queries, scores, end, head_dim, isa):  # type: ignore[no-untyped-def]
    """Float32 ``scores[token, query]`` of 32 queries for the first ``end`` tokens, and some more.

    ``end`` is rounded up to a multiple of 32.
    """
    values = literals(head_dim, isa)
    if values is None:
        return None
    size, name = values

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        tiles = TILES[name](builder, DEPTH)
        groups = builder.lshr(builder.add(args[3], integer(2 * SIDE - 1)), integer(5))
        with cgutils.for_range(builder, groups, intp=I64) as loop:
            rows = builder.add(args[0], builder.mul(loop.index, integer(2 * SIDE * size * 2)))
            for _, _, cell in CELLS:
                tiles.zero(cell)
            with cgutils.for_range(builder, integer(size // DEEP), intp=I64) as step:
                key = builder.add(rows, builder.mul(step.index, integer(DEPTH)))
                query = builder.add(args[1], builder.mul(step.index, integer(TILE_BYTES)))
                for half in range(2):
                    tiles.load(X[half], offset(builder, key, half * SIDE * size * 2), size * 2)
                    place = offset(builder, query, half * size // DEEP * TILE_BYTES)
                    tiles.load(CODES[half], place, LINE)
                _multiply(tiles)
            out = builder.add(args[2], builder.mul(loop.index, integer(2 * SIDE * QUERIES * 4)))
            for row, column, cell in CELLS:
                place = offset(builder, out, row * SIDE * QUERIES * 4 + column * LINE)
                tiles.store(cell, place, QUERIES * 4)
        return context.get_dummy_value()

    return types.void(*[types.intp] * 4, head_dim, isa), codegen


@intrinsic(prefer_literal=True)
def weigh_tiles(typingctx, values, weights, out, end, head_dim, isa):  # type: ignore[no-untyped-def]
    """Adds values of the first ``end`` tokens under their weights to ``out``.

    That is float32 ``[16 queries][head_dim, query]``, twice; ``end`` is rounded up to a multiple
    of 32, and values and weights of all those are numbers.
    """
    constants = literals(head_dim, isa)
    if constants is None:
        return None
    size, name = constants
    steps = PAGE_TOKENS // DEEP

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        tiles = TILES[name](builder, DEPTH)
        count = builder.lshr(builder.add(args[3], integer(DEEP - 1)), integer(5))
        with cgutils.for_range(builder, integer(size // (2 * SIDE)), intp=I64) as loop:
            places = {}
            for row, column, cell in CELLS:
                first = builder.add(args[2], builder.mul(loop.index, integer(2 * TILE_BYTES)))
                at = (column * size + row * SIDE) * LINE
                places[cell] = offset(builder, first, at)
                tiles.load(cell, places[cell], LINE)
            value = builder.add(args[0], builder.mul(loop.index, integer(2 * steps * TILE_BYTES)))
            with cgutils.for_range(builder, count, intp=I64) as step:
                at = builder.mul(step.index, integer(TILE_BYTES))
                for half in range(2):
                    skipped = integer(half * steps * TILE_BYTES)
                    place = builder.add(at, skipped)
                    tiles.load(X[half], builder.add(value, place), LINE)
                    tiles.load(CODES[half], builder.add(args[1], place), LINE)
                _multiply(tiles)
            for cell, place in places.items():
                tiles.store(cell, place, LINE)
        return context.get_dummy_value()

    return types.void(*[types.intp] * 4, head_dim, isa), codegen


def _multiply(tiles: TileRegisters) -> None:
    for row, column, cell in CELLS:
        tiles.multiply_bfloat16(cell, X[row], CODES[column])


@intrinsic(prefer_literal=True)
def turn_words(typingctx, source, target, source_stride, target_stride):  # type: ignore[no-untyped-def]
    """Turns 16 x 16 words of 32 bits; rows lie so many bytes apart."""
    strides = literals(source_stride, target_stride)
    if strides is None:
        return None

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        kind = Vec("i32", SIDE).llvm
        rows = [
            load_from(builder, offset(builder, args[0], row * strides[0]), kind)
            for row in range(SIDE)
        ]
        step = 1
        while step < SIDE:
            for low in [row for row in range(SIDE) if not row & step]:
                rows[low], rows[low + step] = _swapped(builder, rows[low], rows[low + step], step)
            step *= 2
        for row, value in enumerate(rows):
            store_to(builder, value, offset(builder, args[1], row * strides[1]))
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, source_stride, target_stride), codegen


def _swapped(builder: Any, low: Any, high: Any, step: int) -> tuple[ir.Value, ir.Value]:
    """Two rows of a square that have exchanged blocks of ``step`` lanes across its diagonal."""
    first = [lane if not lane & step else SIDE + lane - step for lane in range(SIDE)]
    second = [lane + step if not lane & step else SIDE + lane for lane in range(SIDE)]
    return shuffle(builder, low, high, first), shuffle(builder, low, high, second)
