"""Products of low-bit weights with many batch rows by AMX, the matrix unit of some x86 cores.

The same chunks, pieces and layouts as in ``gemm.py``: a piece of the weights is unpacked once to
one byte a code and multiplied by all batch rows, here 32 x 32 outputs at a time
(``amx_tiles.py``). A part of a tile costs no more than its rows, so these kernels take all rows
of a batch, unless it is too small (``lookup_rows`` of ``turns.py``).

Bounds: those of ``gemm.py``, and the same bits. Sums of ``amx_row`` are exact; those of
``amx_block`` are exact in each block, scaled and added up in order.
"""

from __future__ import annotations

from typing import Any

from numba import float32, int32, njit

from edgerun.kernels.jit.declare import Arguments, Body, kernel
from edgerun.kernels.lang.simd import cast, fma, load, load_splat, splat, store
from edgerun.kernels.lang.tiles import scratch
from edgerun.kernels.lang.word import int_at, word
from edgerun.kernels.layouts.scale_vectors import (
    scales_of,
    upper_halves,
    vectors_of,
    zero_points_of,
)
from edgerun.kernels.layouts.zero_kinds import OFFSETS, OWN, RAISED
from edgerun.kernels.linear.amx_tiles import SIDE, STEP_BYTES, TOKENS, UNITS, WIDTH
from edgerun.kernels.linear.gemm import (
    VECTORS,
    Tiles,
    driver,
    steps_a_piece,
    unpacking,
    zeros_when_unpacked,
)
from edgerun.kernels.linear.outputs import block_values, linear_store, row_values
from edgerun.kernels.linear.rows import BLOCK, ROW
from edgerun.kernels.linear.tiles import K_STEP, zero_point
from edgerun.kernels.linear.turns import ALONE, lookup_rows

LANES = 64  # bytes of the vectors around the tiles
DEPTH = 64  # of K in a tile, at most
TOTAL_BYTES = TOKENS * STEP_BYTES  # of the sums of a block


def _guarded(inner: Any, tokens: int, depth: int, isa: str) -> Body:
    """A kernel that has the registers while it runs, and does nothing for a small batch."""
    run = njit(inline="always")(inner)
    configure, _, release = UNITS[isa]

    def body(a: Arguments, chunk: int) -> None:
        if lookup_rows(word(a.rows, 0), tokens) != 0:
            configure(SIDE, depth)
            run(a, chunk)
            release()

    return body


@kernel("amx_row", ROW)
def amx_row(bits: int, lanes: int, tokens: int, isa: str) -> Body:
    """One scale a weight row and one an activation row, as ``linear_row``."""
    unpack, products = unpacking(bits, lanes, 1), UNITS[isa][1]

    @njit(inline="always")
    def multiply(a, row, count, panel, step, steps, codes, sums):  # type: ignore[no-untyped-def]
        stride = a.x_stride
        unpack(a, panel, step, steps, codes)
        x = a.x + row * stride + step * K_STEP
        for t in range(0, count, TOKENS):
            some_rows, target = min(TOKENS, count - t), sums + t * STEP_BYTES
            tiles = steps * K_STEP // DEPTH
            products(codes, x + t * stride, stride, tiles, some_rows, target, 0, DEPTH)

    store_rows, piece = (
        linear_store(row_values(zero_point(bits, isa)), lanes, VECTORS),
        steps_a_piece(lanes, 1, DEPTH),
    )
    return _guarded(
        driver(Tiles(lanes, bits, 1, piece, VECTORS), multiply, store_rows), tokens, DEPTH, isa
    )


@kernel("amx_block", BLOCK)
def amx_block(
    bits: int, lanes: int, block: int, tokens: int, isa: str, zeros: int, halves: int
) -> Body:
    """One scale per block of K for weights and activations alike, as ``gemm_block``."""
    depth = min(block, DEPTH)
    scale_vectors = vectors_of(bits, zeros, halves)
    zeros = zeros_when_unpacked(bits, isa, zeros)
    unpack = unpacking(bits, lanes, 1, ALONE, block if zeros == RAISED else 0)
    products, add_scaled = UNITS[isa][1], _scaling(bits, isa, zeros, halves)
    block_bytes, tiles = block * WIDTH, block // depth

    @njit(inline="always")
    def multiply(a, row, count, panel, step, steps, codes, sums):  # type: ignore[no-untyped-def]
        stride, blocks, first = a.x_stride, a.blocks, step * K_STEP // block
        panel_bytes = scale_vectors(blocks) * lanes
        scales = a.scales + panel * panel_bytes
        next_panel = min(1, a.panels - 1 - panel) * panel_bytes
        unpack(a, panel, step, steps, codes)
        totals = scratch(TOTAL_BYTES)
        for t in range(0, count, TOKENS):
            some_rows = min(TOKENS, count - t)
            x = a.x + (row + t) * stride + step * K_STEP
            for index in range(steps * K_STEP // block):
                w = codes + index * block_bytes
                products(w, x + index * block, stride, tiles, some_rows, totals, 1, depth)
                at = ((row + t) * blocks + first + index) * 4
                add_scaled(
                    totals,
                    some_rows,
                    scales,
                    next_panel,
                    first + index,
                    a.x_scale + at,
                    a.x_sum + at,
                    blocks,
                    sums + t * STEP_BYTES,
                )

    piece = steps_a_piece(lanes, 1, max(block, DEPTH))
    sizes = Tiles(lanes, bits, 1, piece, VECTORS)
    inner = driver(sizes, multiply, linear_store(block_values, lanes, VECTORS))
    return _guarded(inner, tokens, depth, isa)


def _scaling(bits: int, isa: str, zeros: int, halves: int) -> Any:
    """The function that adds the scaled int32 totals of a block to float32 sums."""
    floats = LANES // 4
    scales_of_block = scales_of(bits, zeros, halves, floats)
    middle = (1 << bits) - 1 if zeros == RAISED else zero_point(bits, isa)
    has_offsets = zeros == OFFSETS
    own, zero_points = zeros == OWN, zero_points_of(bits, (1 << (bits - 1)) - middle, floats)

    @njit(inline="always")
    def offset(panel, block, count):  # type: ignore[no-untyped-def]
        if own:
            return zero_points(panel, block) * splat(int32(count), "i32", floats)
        return splat(int32(middle * count), "i32", floats)

    @njit
    def add_scaled(totals, tokens, scales, next_panel, block, x_scale, x_sum, blocks, sums):  # type: ignore[no-untyped-def]
        for t in range(tokens):
            scale, count = load_splat(x_scale + t * blocks * 4, floats), int_at(x_sum, t * blocks)
            for v in range(VECTORS):
                place = t * STEP_BYTES + v * LANES
                total = load(totals + place, "i32", floats)
                value = cast(total - offset(scales + v * next_panel, block, count), "f32")
                factor = scales_of_block(scales + v * next_panel, block) * scale
                scaled = fma(value, factor, load(sums + place, "f32", floats))
                if has_offsets:
                    words = load(scales + v * next_panel + block * LANES, "i32", floats)
                    x_total = splat(float32(count), "f32", floats) * scale
                    scaled = fma(upper_halves(words), x_total, scaled)
                store(sums + place, scaled)

    return add_scaled
