"""Products of low-bit weights with many batch rows by AMX, the matrix unit of some x86 cores.

The same chunks, pieces and layouts as in ``gemm.py``: a piece of the weights is unpacked once to
one byte a code and multiplied by all batch rows, here 32 x 32 outputs at a time
(``amx_tiles.py``). A part of a tile costs no more than its rows, so these kernels take all rows
of a batch, unless it is too small (``lookup_rows`` of ``linear.py``).

Bounds: those of ``gemm.py``, and the same bits. Sums of ``amx_row`` are exact; those of
``amx_block`` are exact in each block, scaled and added up in order.
"""

from __future__ import annotations

from typing import Any

from numba import int32, njit

from edgerun.kernels.jit.registry import Body, kernel
from edgerun.kernels.lang.simd import cast, fma, load, load_splat, splat, store
from edgerun.kernels.lang.tiles import scratch
from edgerun.kernels.lang.word import int_at, word
from edgerun.kernels.linear.amx_tiles import SIDE, STEP_BYTES, TOKENS, UNITS, WIDTH
from edgerun.kernels.linear.gemm import (
    VECTORS,
    block_store,
    driver,
    gathering,
    row_store,
    tiles_a_piece,
    unpacking,
)
from edgerun.kernels.linear.gemm_tiles import zero_point
from edgerun.kernels.linear.rows import (
    BLOCKS,
    COMMON,
    ROWS,
    TILES,
    X_SCALE,
    X_STRIDE,
    X_SUM,
    X,
    lookup_rows,
)

LANES = 64  # bytes of the vectors around the tiles
DEPTH = 64  # of K in a tile, at most
TOTAL_BYTES = TOKENS * STEP_BYTES  # of the sums of a block
ORDINARY = "avx512vnni"  # whose unpacking and zero points are those of the tiles


def _guarded(inner: Any, tokens: int, depth: int, isa: str) -> Body:
    """A kernel that has the registers while it runs, and does nothing for a small batch."""
    run = njit(inline="always")(inner)
    configure, _, release = UNITS[isa]

    def body(a: int, chunk: int) -> None:
        if lookup_rows(word(word(a, ROWS), 0), tokens) != 0:
            configure(SIDE, depth)
            run(a, chunk)
            release()

    return body


@kernel("amx_row", COMMON + "x x_stride x_scale x_sum")
def amx_row(bits: int, lanes: int, tokens: int, isa: str) -> Body:
    """One scale a weight row and one an activation row, as ``linear_row``."""
    tile_k = lanes * 8 // bits
    piece = tiles_a_piece(bits, lanes, ORDINARY, 1)
    unpack, products = unpacking(bits, lanes, ORDINARY), UNITS[isa][1]

    @njit(inline="always")
    def multiply(a, row, count, n, tile, codes, kept, sums):  # type: ignore[no-untyped-def]
        some, stride = min(piece, word(a, TILES) - tile), word(a, X_STRIDE)
        unpack(a, n, tile, some, codes)
        x = word(a, X) + row * stride + tile * tile_k
        for t in range(0, count, TOKENS):
            some_rows, target = min(TOKENS, count - t), sums + t * STEP_BYTES
            steps = some * tile_k // DEPTH
            products(codes, x + t * stride, stride, steps, some_rows, target, 0, DEPTH)

    store_sums = row_store(bits, WIDTH, ORDINARY)
    return _guarded(driver(ORDINARY, 1, piece, multiply, store_sums, LANES), tokens, DEPTH, isa)


@kernel("amx_block", COMMON + "x x_stride x_scale x_sum blocks")
def amx_block(bits: int, lanes: int, block: int, tokens: int, isa: str) -> Body:
    """One scale per block of K for weights and activations alike, as ``gemm_block``."""
    tile_k, depth = lanes * 8 // bits, min(block, DEPTH)
    piece = tiles_a_piece(bits, lanes, ORDINARY, max(1, block // tile_k))
    unpack, gather = unpacking(bits, lanes, ORDINARY), gathering(WIDTH)
    products, add_scaled, middle = UNITS[isa][1], _scaling(), zero_point(bits, ORDINARY)
    block_bytes, steps = block * WIDTH, block // depth

    @njit(inline="always")
    def multiply(a, row, count, n, tile, codes, kept, sums):  # type: ignore[no-untyped-def]
        some, stride = min(piece, word(a, TILES) - tile), word(a, X_STRIDE)
        blocks, first = word(a, BLOCKS), tile * tile_k // block
        number = some * tile_k // block
        unpack(a, n, tile, some, codes)
        gather(a, n, first, number, kept)
        totals = scratch(TOTAL_BYTES)
        for t in range(0, count, TOKENS):
            some_rows = min(TOKENS, count - t)
            x = word(a, X) + (row + t) * stride + tile * tile_k
            for one in range(number):
                w = codes + one * block_bytes
                products(w, x + one * block, stride, steps, some_rows, totals, 1, depth)
                at = ((row + t) * blocks + first + one) * 4
                add_scaled(
                    totals,
                    some_rows,
                    kept + one * STEP_BYTES,
                    word(a, X_SCALE) + at,
                    word(a, X_SUM) + at,
                    blocks,
                    middle,
                    sums + t * STEP_BYTES,
                )

    kept_bytes = piece * tile_k // block * STEP_BYTES
    inner = driver(ORDINARY, 1, piece, multiply, block_store(WIDTH, ORDINARY), kept_bytes)
    return _guarded(inner, tokens, depth, isa)


def _scaling() -> Any:
    """The function that adds the scaled int32 totals of a block to float32 sums."""
    floats = LANES // 4

    @njit
    def add_scaled(totals, tokens, scales, x_scale, x_sum, blocks, middle, sums):  # type: ignore[no-untyped-def]
        for t in range(tokens):
            offset = splat(int32(middle * int_at(x_sum, t * blocks)), "i32", floats)
            scale = load_splat(x_scale + t * blocks * 4, floats)
            for v in range(VECTORS):
                place = t * STEP_BYTES + v * LANES
                value = cast(load(totals + place, "i32", floats) - offset, "f32")
                factor = load(scales + v * LANES, "f32", floats) * scale
                store(sums + place, fma(value, factor, load(sums + place, "f32", floats)))

    return add_scaled
