"""Products of low-bit weights with many batch rows, at the speed of the multipliers.

``linear_row`` and ``linear_block`` (``linear.py``) unpack weights anew for every few batch rows,
which is right for decoding and costs a third to a half of the speed in prefill. Here a chunk
takes its weight rows a few vectors at a time and K in pieces, unpacks a piece once to one byte a
code, in the first cache, and multiplies it by all batch rows. Batch rows are taken in blocks of
``tokens``; what is left, if less than half a block, is for the linear kernels, which leave out
the others (their field ``lookup``). Fields and layouts are those of ``linear.py``.

Bounds: ``gemm_row`` is exact up to its scaling. ``gemm_block`` has exact sums of blocks, scaled and
added up in order; the float32 accumulation over B blocks adds at most B * 2**-24 of the sum of
magnitudes. Both do the float operations of ``linear_row`` and ``linear_block`` in the same order:
results have the same bits, and depend neither on the number of batch rows nor on the split into
chunks.
"""

from __future__ import annotations

from typing import Any

from numba import float32, int32, njit

from edgerun.kernels.isa import isa_of
from edgerun.kernels.jit.registry import Body, kernel
from edgerun.kernels.lang.simd import cast, load, splat, store
from edgerun.kernels.lang.tiles import scratch
from edgerun.kernels.lang.word import float_at, int_at, set_float, word
from edgerun.kernels.linear.gemm_tiles import (
    gemm_block_tile,
    gemm_row_tile,
    parts,
    zero_point,
)
from edgerun.kernels.linear.gemm_unpack import unpack_rows
from edgerun.kernels.linear.rows import (
    ACCUMULATE,
    BIAS,
    BLOCKS,
    CODES,
    COMMON,
    GROUPS,
    OUT,
    OUT_STRIDE,
    ROWS,
    SCALES,
    STEP,
    TILES,
    X_SCALE,
    X_STRIDE,
    X_SUM,
    N,
    X,
    lookup_rows,
)
from edgerun.kernels.linear.rows import finish as store_one

VECTORS = 2  # vectors of weight rows in a tile
MOST_ROWS = 256  # batch rows that share an unpacked piece
SLAB = 64  # weight rows that share a piece of the activations in the second cache
PIECE_BYTES = 16 * 1024  # of unpacked codes: half of a small first cache


def gemm_lanes(isa: str) -> int:
    """Bytes of the vectors that ``isa`` multiplies."""
    return isa_of(isa).vector_bytes


def tiles_a_piece(bits: int, lanes: int, isa: str, unit: int) -> int:
    """Vectors of a weight row that are unpacked at a time, a multiple of ``unit``."""
    tile_bytes = VECTORS * gemm_lanes(isa) // 4 * lanes * 8 // bits * parts(bits, isa)
    return PIECE_BYTES // (tile_bytes * unit) * unit


@njit(inline="always")
def _clear(address: int, size: int, lanes):  # type: ignore[no-untyped-def]
    for place in range(address, address + size, lanes):
        store(place, splat(0, "i8", lanes))


@njit(inline="always")
def _store_vector(a, row, n, value, lanes):  # type: ignore[no-untyped-def]
    """Adds bias and residual to outputs ``n``, ``n + 1``, ... of a batch row and stores them."""
    place = word(a, OUT) + (row * word(a, OUT_STRIDE) + n) * 4
    if word(a, BIAS) != 0:
        value = value + load(word(a, BIAS) + n * 4, "f32", lanes)
    if word(a, ACCUMULATE) != 0:
        value = value + load(place, "f32", lanes)
    store(place, value)


def unpacking(bits: int, lanes: int, isa: str) -> Any:
    """The function that unpacks ``some`` vectors from ``tile`` on of the rows from ``n`` on."""
    step_bytes, rows = VECTORS * gemm_lanes(isa), lanes // 4
    width, part_bits = step_bytes // 4, bits // parts(bits, isa)

    @njit(inline="always")
    def unpack(a, n, tile, some, codes):  # type: ignore[no-untyped-def]
        tiles, limit = word(a, TILES), word(a, GROUPS) * 4 - 1
        source = word(a, CODES) + tile * lanes
        ahead = width * tiles * lanes
        for r in range(0, width, rows):
            unpack_rows(
                source,
                tiles * lanes,
                n + r,
                limit,
                some,
                codes + r * 4,
                ahead,
                step_bytes,
                part_bits,
                lanes,
            )

    return unpack


def driver(
    isa: str, tokens: int, piece_tiles: int, multiply: Any, finish: Any, kept_bytes: int
) -> Body:
    """The loops around the tiles.

    ``multiply(a, row, count, n, tile, codes, kept, sums)`` adds the products of a piece, from
    ``tile`` on, to the sums of ``width`` weight rows and ``count`` batch rows.
    ``finish(a, row, count, n, last, sums)`` stores them.
    """
    lanes = gemm_lanes(isa)
    width = VECTORS * lanes // 4
    slab_bytes = SLAB * MOST_ROWS * 4

    def body(a: int, chunk: int) -> None:
        rows, tiles = lookup_rows(word(word(a, ROWS), 0), tokens), word(a, TILES)
        first = chunk * word(a, STEP) * 4
        end = min(min(word(a, GROUPS) * 4, first + word(a, STEP) * 4), word(a, N))
        codes, kept = scratch(PIECE_BYTES), scratch(kept_bytes)
        sums = scratch(slab_bytes)
        for row in range(0, rows, MOST_ROWS):
            count = min(MOST_ROWS, rows - row)
            size = (count + tokens - 1) // tokens * tokens * width * 4
            for start in range(first, end, SLAB):
                last = min(start + SLAB, end)
                _clear(sums, (last - start + width - 1) // width * size, lanes)
                for tile in range(0, tiles, piece_tiles):
                    for n in range(start, last, width):
                        place = sums + (n - start) // width * size
                        multiply(a, row, count, n, tile, codes, kept, place)
                for n in range(start, last, width):
                    finish(a, row, count, n, last, sums + (n - start) // width * size)

    return body


@kernel("gemm_row", COMMON + "x x_stride x_scale x_sum")
def gemm_row(bits: int, lanes: int, tokens: int, isa: str) -> Body:
    """One scale a weight row and one an activation row, as ``linear_row``."""
    wide, vectors, run = gemm_lanes(isa), VECTORS, lanes // 4
    width, tile_k = vectors * wide // 4, lanes * 8 // bits
    piece_tiles = tiles_a_piece(bits, lanes, isa, 1)
    unpack = unpacking(bits, lanes, isa)

    @njit(inline="always")
    def multiply(a, row, count, n, tile, codes, kept, sums):  # type: ignore[no-untyped-def]
        some, stride = min(piece_tiles, word(a, TILES) - tile), word(a, X_STRIDE)
        unpack(a, n, tile, some, codes)
        x = word(a, X) + row * stride + tile * tile_k
        for t in range(0, count, tokens):
            gemm_row_tile(
                codes,
                x + t * stride,
                stride,
                count - 1 - t,
                some * tile_k,
                sums + t * width * 4,
                vectors,
                tokens,
                bits,
                wide,
                run,
                isa,
            )

    return driver(isa, tokens, piece_tiles, multiply, row_store(bits, width, isa), 64)


def row_store(bits: int, width: int, isa: str) -> Any:
    """The function that scales and stores int32 sums."""
    middle, floats = zero_point(bits, isa), gemm_lanes(isa) // 4

    @njit(inline="always")
    def finish(a, row, count, n, last, sums):  # type: ignore[no-untyped-def]
        for t in range(row, row + count):
            offset = middle * int_at(word(a, X_SUM), t)
            factor = float_at(word(a, X_SCALE), t)
            if n + width <= last:
                for r in range(0, width, floats):
                    total = load(sums + r * 4, "i32", floats) - splat(int32(offset), "i32", floats)
                    value = cast(total, "f32") * splat(factor, "f32", floats)
                    value = value * load(word(a, SCALES) + (n + r) * 4, "f32", floats)
                    _store_vector(a, t, n + r, value, floats)
            else:
                for r in range(last - n):
                    total = float32(int_at(sums, r) - offset) * factor
                    store_one(a, t, n + r, total * float_at(word(a, SCALES), n + r))
            sums += width * 4

    return finish


@kernel("gemm_block", COMMON + "x x_stride x_scale x_sum blocks")
def gemm_block(bits: int, lanes: int, block: int, tokens: int, isa: str) -> Body:
    """One scale per block of K for weights and activations alike, as ``linear_block``."""
    wide, vectors, run = gemm_lanes(isa), VECTORS, lanes // 4
    width, tile_k = vectors * wide // 4, lanes * 8 // bits
    piece_tiles = tiles_a_piece(bits, lanes, isa, max(1, block // tile_k))
    unpack, gather = unpacking(bits, lanes, isa), gathering(width)

    @njit(inline="always")
    def multiply(a, row, count, n, tile, codes, kept, sums):  # type: ignore[no-untyped-def]
        some, stride = min(piece_tiles, word(a, TILES) - tile), word(a, X_STRIDE)
        first, number = tile * tile_k // block, some * tile_k // block
        unpack(a, n, tile, some, codes)
        gather(a, n, first, number, kept)
        x = word(a, X) + row * stride + tile * tile_k
        for t in range(0, count, tokens):
            at = ((row + t) * word(a, BLOCKS) + first) * 4
            gemm_block_tile(
                codes,
                x + t * stride,
                stride,
                count - 1 - t,
                kept,
                word(a, X_SCALE) + at,
                word(a, X_SUM) + at,
                word(a, BLOCKS),
                number,
                sums + t * width * 4,
                vectors,
                tokens,
                bits,
                wide,
                run,
                isa,
                block,
            )

    kept_bytes = piece_tiles * tile_k // block * width * 4
    return driver(isa, tokens, piece_tiles, multiply, block_store(width, isa), kept_bytes)


def gathering(width: int) -> Any:
    """The function that collects the scales of ``number`` blocks of ``width`` rows."""

    @njit(inline="always")
    def gather(a, n, first, number, kept):  # type: ignore[no-untyped-def]
        limit = word(a, GROUPS) * 4 - 1
        for r in range(width):
            source = word(a, SCALES) + min(n + r, limit) * word(a, BLOCKS) * 4
            for index in range(number):
                set_float(kept, index * width + r, float_at(source, first + index))

    return gather


def block_store(width: int, isa: str) -> Any:
    """The function that stores float32 sums."""
    floats = gemm_lanes(isa) // 4

    @njit(inline="always")
    def finish(a, row, count, n, last, sums):  # type: ignore[no-untyped-def]
        for t in range(row, row + count):
            if n + width <= last:
                for r in range(0, width, floats):
                    _store_vector(a, t, n + r, load(sums + r * 4, "f32", floats), floats)
            else:
                for r in range(last - n):
                    store_one(a, t, n + r, float_at(sums, r))
            sums += width * 4

    return finish
