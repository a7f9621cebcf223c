"""Products of low-bit weights with many batch rows by AMX, the matrix unit of some x86 cores.

A thread takes a strip of weight rows, a few panels and all of K, unpacks it once into memory that
its second cache holds, and multiplies it by all batch rows, 32 x 32 outputs at a time, whose sums
stay in tile registers for all of K (``amx_tiles.py``). Operands lie in tile order
(``layouts/tile_order.py``): every tile is read in one piece, rows are filled up to tiles, and the
registers are set up once a chunk. Outputs that no cache would hold go past them.

These kernels take all rows of a batch, unless it is too small (``rows_in_blocks`` of ``turns.py``).

Bounds: those of ``gemm.py``, and the same bits. Sums of ``amx_row`` are exact; those of
``amx_block`` are exact in each block, scaled and added up in order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from numba import int32, njit, uint8

from edgerun.kernels.jit.declare import Arguments, Body, kernel
from edgerun.kernels.lang.intrinsics import (
    atomic_store,
    atomic_swap,
    store_fence,
    store_past_caches,
)
from edgerun.kernels.lang.simd import load, mask_bits, reinterpret, shift_right, splat, store
from edgerun.kernels.lang.tile_registers import LINE, SIDE, configure_tiles, release_tiles
from edgerun.kernels.lang.tiles import scratch
from edgerun.kernels.lang.word import word
from edgerun.kernels.layouts.scale_vectors import vectors_of, zero_points_of
from edgerun.kernels.layouts.tile_order import (
    MOST_DEPTH,
    PAIR,
    TOKENS,
    depth_of,
    register_order,
)
from edgerun.kernels.layouts.zero_kinds import MIDDLE, OWN
from edgerun.kernels.linear.amx_tiles import (
    STEP_BYTES,
    SUMS_BYTES,
    multiply_tiles,
    scale_tiles,
)
from edgerun.kernels.linear.gated import UP, UP_BLOCK_SCALES, UP_ROW_SCALES
from edgerun.kernels.linear.outputs import block_values, gated_store, linear_store, row_values
from edgerun.kernels.linear.rows import BLOCK_SCALES, CODES, OUTPUTS, ROW_SCALES
from edgerun.kernels.linear.turns import ALONE, GATED, Sides, rows_in_blocks
from edgerun.kernels.pointwise.elementwise import gated
from edgerun.kernels.pointwise.pack import packing, turning

CACHED_BYTES = 1 << 20  # of outputs; of more, nothing is there any more when they are read
STACK_BYTES = 8 << 20  # from one thread's stack to the next, as a rule
# Rows in tile order are filled up, and their scales are turned.
_ROWS = "rows + packed * (-(-rows // 32) * 32 - rows)"
_X = f"x:i8[{_ROWS}, tiles, 32 // bits; x_stride] x_stride"
_AREAS = "areas:u8[slots, area_bytes] area_bytes taken:i64[slots, 8] slots strip least"
ROW = f"{OUTPUTS} {CODES} {ROW_SCALES} x_scale:f32[rows] x_sum:i32[rows] {_X} {_AREAS}"
BLOCK = (
    f"{OUTPUTS} {CODES} {BLOCK_SCALES} x_scale:f32[{_ROWS}, blocks] x_sum:i32[{_ROWS}, blocks]"
    f" {_X} blocks {_AREAS}"
)


@dataclass(frozen=True)
class Operands:
    """What a kernel multiplies, and how it gets at that.

    Attributes:
        depth: of K in a tile.
        sides: matrices.
        tokens: of ``rows_in_blocks``.
        isa: instruction set, or its model.
        unpack: the function that brings two panels into tile order.
        activations: the function that says where up to 32 rows lie in that order, their scales and
            the sums of their codes.
        multiply: the function that makes sums of two panels and those rows.
    """

    depth: int
    sides: Sides
    tokens: int
    isa: str
    unpack: Any
    activations: Any
    multiply: Any


@dataclass(frozen=True)
class BlockForm:
    """Weights with scales of blocks.

    Attributes:
        bits: of a code.
        block: weights that share a scale; 0 if all of a row do.
        zeros: what zero points of blocks are (``layouts/zero_kinds.py``).
        halves: whether scales are float16.
    """

    bits: int
    block: int
    zeros: int
    halves: int


def _kernel(operands: Operands, bits: int, store_of: Callable[[Any], Any]) -> Body:
    """The loops around tiles; ``store_of`` makes what stores sums, of what stores a vector."""
    depth, isa, tokens = operands.depth, operands.isa, operands.tokens
    unpack, activations, multiply = operands.unpack, operands.activations, operands.multiply
    panels, tile = PAIR // operands.sides.matrices, 32 // bits
    keep, pass_by = store_of(store), store_of(store_past_caches)

    @njit
    def multiply_strip(a, first, last, rows, area, goes_past):  # type: ignore[no-untyped-def]
        k, sums = a.tiles * tile, scratch(SUMS_BYTES)
        pair_bytes = PAIR * SIDE * k
        for panel in range(first, last, panels):
            unpack(a, panel, area + (panel - first) // panels * pair_bytes)
        beyond = area + a.strip // panels * pair_bytes
        for row in range(0, rows, TOKENS):
            count = min(TOKENS, rows - row)
            x, x_scale, x_sum = activations(a, row, count, k, beyond)
            for panel in range(first, last, panels):
                codes = area + (panel - first) // panels * pair_bytes
                multiply(a, count, panel, k, codes, x, x_scale, x_sum, sums)
                if goes_past:
                    pass_by(a, row, count, panel, 1, last - 1 - panel, sums, PAIR)
                else:
                    keep(a, row, count, panel, 1, last - 1 - panel, sums, PAIR)

    def body(a: Arguments, chunk: int) -> None:
        rows = rows_in_blocks(word(a.rows, 0), tokens, a.least)
        if rows != 0:
            begin = chunk * a.step
            end, slot = min(a.panels, begin + a.step), _take(a.taken, a.slots)
            is_aligned = (a.out | (a.out_stride * 4)) % LINE == 0
            goes_past = is_aligned and a.accumulate == 0 and rows * a.n * 4 > CACHED_BYTES
            configure_tiles(depth, isa)
            for first in range(begin, end, a.strip):
                last = min(first + a.strip, end)
                multiply_strip(a, first, last, rows, a.areas + slot * a.area_bytes, goes_past)
            release_tiles(depth, isa)
            store_fence()
            atomic_store(a.taken + slot * LINE, 0)

    return body


@njit
def _take(taken, slots):  # type: ignore[no-untyped-def]
    """Takes the area of a thread: the same one every time, if no two threads like the same.

    There are as many as threads.
    """
    slot = scratch(LINE) // STACK_BYTES % slots
    while atomic_swap(taken + slot * LINE, 1) != 0:
        slot = (slot + 1) % slots
    return slot


def _unpacking(form: BlockForm, sides: Sides) -> Any:
    """The function that unpacks all of K of two panels into ``codes``.

    They are consecutive panels, or the same one of each matrix; one beyond the last is read as it.
    Codes of rows with one scale stay as they are. In ``block``s they become signed bytes: what they
    stand for, or with zero points of 8 bits, what those say relative to the middle.
    """
    bits, depth = form.bits, depth_of(form.block)
    planes, lines = 8 // bits, depth // 4
    vectors, tile_bytes = lines // planes, lines * LINE
    less, matrices, distances = _less(form), sides.matrices, sides.distances

    @njit(inline="always")
    def unpack(a, panel, codes):  # type: ignore[no-untyped-def]
        to_codes, to_scales = distances(a)
        for v in range(PAIR):
            present, matrix = min(panel + v // matrices, a.panels - 1), v % matrices
            source = a.codes + present * a.tiles * LINE + matrix * to_codes
            target = codes + v * tile_bytes
            for tile in range(a.tiles // vectors):
                distance = less(a, present, matrix * to_scales, tile)
                for vector in range(vectors):
                    packed = load(source + vector * LINE, "u8", LINE)
                    _store_planes(packed, target + vector * planes * LINE, distance)
                source += vectors * LINE
                target += PAIR * tile_bytes

    @njit(inline="always")
    def _store_planes(packed, target, distance):  # type: ignore[no-untyped-def]
        if bits == 8:
            store(target, packed - distance)
        elif bits == 4:
            store(target, mask_bits(packed, 15) - distance)
            store(target + LINE, shift_right(packed, 4) - distance)
        else:
            store(target, mask_bits(packed, 3) - distance)
            store(target + LINE, mask_bits(shift_right(packed, 2), 3) - distance)
            store(target + 2 * LINE, mask_bits(shift_right(packed, 4), 3) - distance)
            store(target + 3 * LINE, shift_right(packed, 6) - distance)

    return unpack


def _less(form: BlockForm) -> Any:
    """The function that says what is subtracted from the codes of a tile, in every byte."""
    bits, block, zeros, halves = form.bits, form.block, form.zeros, form.halves
    middle, tiles = 1 << (bits - 1), max(1, block // depth_of(block))
    scale_vectors = vectors_of(bits, zeros, halves)
    zero_points = zero_points_of(bits, halves, SIDE)

    @njit(inline="always")
    def less(a, panel, to_scales, tile):  # type: ignore[no-untyped-def]
        if block == 0:
            return splat(uint8(0), "u8", LINE)
        if zeros != OWN or bits == 8:
            return splat(uint8(middle), "u8", LINE)
        scales = a.scales + panel * scale_vectors(a.blocks) * LINE + to_scales
        points = zero_points(scales, tile // tiles)
        return reinterpret(points * splat(int32(0x01010101), "i32", SIDE), "u8")

    return less


def _row_operands(bits: int, tokens: int, packed: int, isa: str, sides: Sides) -> Operands:
    """Those of rows with one scale: sums are int32 over the whole of K."""
    pack = packing(register_order(0))

    @njit(inline="always")
    def activations(a, row, count, k, area):  # type: ignore[no-untyped-def]
        x = a.x + row * a.x_stride
        if packed:
            return x, 0, 0
        pack(x, a.x_stride, count, k, area)
        return area, 0, 0

    @njit(inline="always")
    def multiply(a, count, panel, k, codes, x, x_scale, x_sum, sums):  # type: ignore[no-untyped-def]
        if count > SIDE:
            multiply_tiles(codes, x, k // MOST_DEPTH, sums, 2, isa)
        else:
            multiply_tiles(codes, x, k // MOST_DEPTH, sums, 1, isa)

    unpack = _unpacking(BlockForm(bits, 0, MIDDLE, 0), sides)
    return Operands(MOST_DEPTH, sides, tokens, isa, unpack, activations, multiply)


def _block_operands(form: BlockForm, tokens: int, packed: int, isa: str, sides: Sides) -> Operands:
    """Those of scaled blocks: sums are float32."""
    bits, block, zeros, halves = form.bits, form.block, form.zeros, form.halves
    depth, distances, matrices = depth_of(block), sides.distances, sides.matrices
    pack, tile_bytes = packing(register_order(block)), SIDE * depth
    turn = turning(register_order(block))
    scale_vectors = vectors_of(bits, zeros, halves)

    @njit(inline="always")
    def activations(a, row, count, k, area):  # type: ignore[no-untyped-def]
        x, at = a.x + row * a.x_stride, row * a.blocks * 4
        if packed:
            return x, a.x_scale + at, a.x_sum + at
        x_scale, x_sum = area + TOKENS * k, area + TOKENS * (k + 4 * a.blocks)
        pack(x, a.x_stride, count, k, area)
        turn(a.x_scale + at, a.blocks, count, x_scale)
        turn(a.x_sum + at, a.blocks, count, x_sum)
        return area, x_scale, x_sum

    @njit
    def multiply(a, count, panel, k, codes, x, x_scale, x_sum, sums):  # type: ignore[no-untyped-def]
        for v in range(PAIR):
            present = min(panel + v // matrices, a.panels - 1)
            scales = a.scales + present * scale_vectors(a.blocks) * LINE
            scales += v % matrices * distances(a)[1]
            for t in range(0, count, SIDE):
                scale_tiles(
                    codes + v * tile_bytes,
                    x + t // SIDE * tile_bytes,
                    scales,
                    x_scale + t * 4,
                    x_sum + t * 4,
                    a.blocks,
                    sums + t * STEP_BYTES + v * LINE,
                    block,
                    bits,
                    zeros,
                    halves,
                    isa,
                )

    unpack = _unpacking(form, sides)
    return Operands(depth, sides, tokens, isa, unpack, activations, multiply)


@kernel("amx_row", ROW)
def amx_row(bits: int, lanes: int, tokens: int, packed: int, isa: str) -> Body:
    """One scale a weight row and one an activation row, as ``linear_row``.

    With ``packed``, activations are in tile order. ``areas`` has memory for each thread that may
    call it, ``taken`` a word with 0 for each, ``strip`` is what is unpacked at a time.
    """
    operands, values = _row_operands(bits, tokens, packed, isa, ALONE), row_values(1 << (bits - 1))
    return _kernel(operands, bits, lambda put: linear_store(values, lanes, put))


@kernel("amx_block", BLOCK)
def amx_block(
    bits: int,
    lanes: int,
    block: int,
    tokens: int,
    packed: int,
    isa: str,
    zeros: int,
    halves: int,
) -> Body:
    """One scale per block of K for weights and activations alike, as ``gemm_block``."""
    operands = _block_operands(BlockForm(bits, block, zeros, halves), tokens, packed, isa, ALONE)
    return _kernel(operands, bits, lambda put: linear_store(block_values, lanes, put))


@kernel("amx_gated_row", f"{ROW} {UP} {UP_ROW_SCALES}")
def amx_gated_row(
    activation: str, bits: int, lanes: int, tokens: int, packed: int, isa: str, matrices: int
) -> Body:
    """``amx_row`` of gate and up; ``accumulate`` is 0."""
    operands = _row_operands(bits, tokens, packed, isa, GATED[matrices])
    values, combine = row_values(1 << (bits - 1)), gated(activation)
    return _kernel(operands, bits, lambda put: gated_store(values, combine, lanes, matrices, put))


@kernel("amx_gated_block", f"{BLOCK} {UP} {UP_BLOCK_SCALES}")
def amx_gated_block(
    activation: str,
    bits: int,
    lanes: int,
    block: int,
    tokens: int,
    packed: int,
    isa: str,
    zeros: int,
    halves: int,
    matrices: int,
) -> Body:
    """``amx_block`` of gate and up; ``accumulate`` is 0."""
    form, combine = BlockForm(bits, block, zeros, halves), gated(activation)
    operands = _block_operands(form, tokens, packed, isa, GATED[matrices])
    return _kernel(
        operands, bits, lambda put: gated_store(block_values, combine, lanes, matrices, put)
    )
